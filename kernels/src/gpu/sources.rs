//! The kernels' source text, in the order in which it is joined. (The build of `codegen` includes this file as well.)

/// `(file name, text)`; joined in this order they are one translation unit without includes, for clang, hipRTC and NVRTC.
pub static SOURCES: &[(&str, &str)] = &[
    ("portable.h", include_str!("../../hip/portable.h")),
    ("tile.h", include_str!("../../hip/tile.h")),
    ("gemm.hip", include_str!("../../hip/gemm.hip")),
    ("conv.hip", include_str!("../../hip/conv.hip")),
    ("pool.hip", include_str!("../../hip/pool.hip")),
    ("attention.hip", include_str!("../../hip/attention.hip")),
    ("nonzero.hip", include_str!("../../hip/nonzero.hip")),
    ("sort.hip", include_str!("../../hip/sort.hip")),
    ("dft.hip", include_str!("../../hip/dft.hip")),
    ("nms.hip", include_str!("../../hip/nms.hip")),
    ("nbits.hip", include_str!("../../hip/nbits.hip")),
    ("util.hip", include_str!("../../hip/util.hip")),
];

/// One text; messages of compilers name the files.
pub fn joined() -> String {
    let mut s = String::new();
    for (name, text) in SOURCES {
        s.push_str(&format!("#line 1 \"{name}\"\n{text}\n"));
    }
    s
}
