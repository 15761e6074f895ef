// Products of ggml's kernels as llama.cpp calls them: of weights as they lie in a file, and repacked
// where it has a layout for them.

#include "cases.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "repack.h"

int main() {
  const struct {
    const char *name;
    ggml_type type;
  } kinds[] = {{"float32", GGML_TYPE_F32}, {"float16", GGML_TYPE_F16}, {"8-bit", GGML_TYPE_Q8_0}, {"4-bit", GGML_TYPE_Q4_0}};
  ggml_backend_t backend = ggml_backend_cpu_init();
  ggml_backend_cpu_set_n_threads(backend, 1);
  ggml_backend_buffer_type_t plain = ggml_backend_cpu_buffer_type();
  for (ggml_backend_buffer_type_t layout : {plain, ggml_backend_cpu_repack_buffer_type()})
    for (const auto &kind : kinds)
      for (const Shape &shape : shapes()) {
        if (layout != plain && !ggml_is_quantized(kind.type)) continue;
        const ggml_init_params room = {16 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true};
        ggml_context *of_weights = ggml_init(room), *of_rest = ggml_init(room);
        ggml_tensor *w = ggml_new_tensor_2d(of_weights, kind.type, shape.inputs, shape.outputs);
        ggml_backend_buffer_t weights = ggml_backend_alloc_ctx_tensors_from_buft(of_weights, layout);
        if (layout == plain || w->extra) {
          const std::vector<char> zeros(ggml_nbytes(w));
          ggml_backend_tensor_set(w, zeros.data(), 0, zeros.size());
          ggml_tensor *x = ggml_new_tensor_2d(of_rest, GGML_TYPE_F32, shape.inputs, shape.rows);
          ggml_tensor *y = ggml_mul_mat(of_rest, w, x);
          ggml_cgraph *graph = ggml_new_graph(of_rest);
          ggml_build_forward_expand(graph, y);
          ggml_backend_buffer_t rest = ggml_backend_alloc_ctx_tensors_from_buft(of_rest, plain);
          std::vector<float> numbers(shape.inputs * shape.rows);
          for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = (float)(i % 17) - 8.0f;
          ggml_backend_tensor_set(x, numbers.data(), 0, ggml_nbytes(x));
          count(kind.name, layout == plain ? "plain" : "repacked", shape,
                [&] { ggml_backend_graph_compute(backend, graph); });
          ggml_backend_buffer_free(rest);
        }
        ggml_backend_buffer_free(weights);
        ggml_free(of_weights);
        ggml_free(of_rest);
      }
  ggml_backend_free(backend);
}
