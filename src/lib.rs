//! An ONNX compiler and runtime for AMD GPUs, NVIDIA GPUs and CPUs.
#![deny(missing_docs)]
