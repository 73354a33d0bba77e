//! Nothing but a test: the names, constants and signatures of `runtime::device::hip::table` against HIP's own headers, as
//! `hip-runtime-sys` has them. The runtime links no driver and states them by hand; here a slip shows.
