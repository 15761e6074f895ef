"""A trained model with cheaper attention, in closed form, and what that changed."""

from suffice.convert.certificate import Certificate, LayerCertificate, LossChange
from suffice.convert.convert import Converted, convert
from suffice.convert.target import Step, plan_of, plan_to_json, read_plan, spec_after, steps_of

__all__ = [
    "Certificate",
    "Converted",
    "LayerCertificate",
    "LossChange",
    "Step",
    "convert",
    "plan_of",
    "plan_to_json",
    "read_plan",
    "spec_after",
    "steps_of",
]
