"""What a decoder takes in memory and in training, from its sizes alone: `suffice fits`."""
