{
  description = "FP8 kernels for LLM decoding on AMD MI300X and MI350, with CUDA and CPU variants";

  inputs.kernel-builder.url = "github:huggingface/kernels";

  outputs =
    { self, kernel-builder, ... }:
    kernel-builder.lib.genKernelFlakeOutputs {
      inherit self;
      path = ./.;
      # The CPU's sources and flags are x86-64's: on aarch64 `-mavx2` is an error.
      torchVersions =
        defaultVersions:
        map (
          version:
          if version.cpu or false then
            version // { systems = builtins.filter (system: system == "x86_64-linux") version.systems; }
          else
            version
        ) defaultVersions;
    };
}
