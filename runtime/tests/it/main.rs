//! The runtime without a compiler: fake compiled models are `extern "C"` functions that use the table as generated code does.

mod conformance;
mod fake;
mod fake_gpu;
mod gpu;
mod hardware;
mod no_device;
mod sessions;
mod shared_object;
