"""What instructions compute, on the registers of a wave. Knows no memory and no schedule; its text is binary's.

One rounding, to nearest even; denormals are kept. What is chosen where AMD does not say:

  v_exp, v_rcp, v_rsq, v_sqrt are correctly rounded (hardware: 1 ulp); single-precision denormals are 0 to them, as LLVM
  assumes
  v_div_scale, v_div_fmas and v_div_fixup together give the correctly rounded quotient; AMD's pseudocode does not
  MFMA and SMFMAC add in float64, exactly unless exponents lie far apart, and round once; the hardware's order is not
  published
  A scale of 255 makes even zeros of its block NaN in MFMA
  a NaN made from numbers is 0x7fc00000
  v_cvt_pk_fp8_f32 with MODE.FP16_OVFL turns infinities too into the largest number, and so do the scaled conversions
  a 16-bit result clears the other half of its register (LLVM: GFX9 does; the pseudocode says nothing)

tests/pseudocode.py executes AMD's pseudocode, and test_pseudocode.py holds every scalar, vector and packed instruction
to it. One that is added to the tables is tested by these at once. mx.py and scaled.py name their sources of what it
does not say.
"""
