//! What must hold of the library as a whole, seen through its public interface: models are built here, compiled, saved, loaded and run.
//!
//! One file per promise under `holds/`. Models come from [`holds::kit`] as the bytes of ONNX files, so every test starts where a user
//! does. `HIP_EP_MUTANTS=50000` makes the mutation test run as long as CI does.

mod holds;
