{
  description = "FP8 kernels for LLM decoding on AMD MI300X and MI350, with CUDA and CPU variants";

  inputs.kernel-builder.url = "github:huggingface/kernels";

  outputs =
    { self, kernel-builder, ... }:
    kernel-builder.lib.genKernelFlakeOutputs {
      inherit self;
      path = ./.;
    };
}
