//! The text of `docs/ABI.md`: written around the table, so that it cannot differ from the code.

use crate::abi::{ABI_VERSION, FIELDS, Table, TensorDesc, abi_hash};
use std::fmt::Write;

const HEAD: &str = "# ABI

How compiled models and the runtime talk. Generated from `runtime/src/abi.rs`; `UPDATE_DOCS=1 cargo test -p hip-ep-runtime docs`
writes it anew.

A compiled model has **no undefined symbols**. It is the same code whether the JIT or the system's loader brings it into the
process; the runtime hands it one table of functions.

## Symbols a model exports

| symbol | what |
|---|---|
| `hip_ep_init` | `i32 (ptr table)`: keeps the table. Refuses another size or version with a status other than 0. |
| `hip_ep_run` | `i32 (ptr context, ptr frame)`: one run. `frame` is `hip_ep_frame_words` zeroed u64 of the run's own. |
| `hip_ep_frame_words` | u64 |
| `hip_ep_abi_hash` | u64: the hash below at compile time; another one is refused when the model is loaded |
| `hip_ep_metadata`, `hip_ep_metadata_len` | the metadata as in the artifact (native libraries) |
| `hip_ep_gpu`, `hip_ep_gpu_len` | the artifact's sections of GPU code, packed (native libraries) |

`hip_ep_run` may run on several threads at once, each with a context and a frame of its own. A model has no other state.

## Status

Every function returns an i32. 0 is success; anything else makes the model return at once with that status. The reason, with the
model's node, is in the run context; nothing is in thread-local state. `node` arguments are positions in the artifact's debug table.

## Spaces

0 device, 1 host, 2 host-mapped (host memory that kernels may read and write). On the CPU all three are ordinary memory. Registers
are i64: an extent, a number of bytes, or an address.

## Kernels

One signature for generated, catalog and plugin kernels on the CPU: `i32 (ptr context, ptr args, i64 begin, i64 end)` runs the outer
points `begin..end`. `args` are 8-byte words: addresses, then i64 extents and strides, then scalars as bits of f64. Ranges of one
launch are disjoint and may run on several threads. A kernel calls nothing of the table. A model that was not compiled for the CPU
gives null for its kernels' code.

On a GPU the same words, in the same order, are the kernel's argument segment; generated kernels get one more, the i64 number of
outer points. `launch` gives the kernel's position, by which the runtime finds the function and how it is launched (metadata). Work is
queued: a call that returns 0 has been accepted, and what goes wrong later appears at the next wait.

Element types are numbered as in ONNX. Types below 8 bits are packed, contiguous, lowest bits first; bool is one byte. Zero-size
tensors may have any address.

";

const TAIL: &str = "
## Order within a run

1. Before `hip_ep_run`: inputs are checked against name, dtype, rank and fixed extents, made contiguous and copied to the device
   where it is not the host.
2. `input_dim`, `guard_failed`: the program checks what it assumes about extents.
3. `reserve` once per domain, before its first use; growth moves the domain, so earlier addresses are gone.
4. `output` once per output, when its extents are known; the caller gives the memory.
5. Launches, calls, copies, in stream order; `readback` waits for the stream.
6. After `hip_ep_run`: copies of outputs to the caller's memory are queued where the device cannot write there, then the stream is
   waited for, once.
";

/// The text of `docs/ABI.md`.
pub fn render_markdown() -> String {
    let mut out = String::from(HEAD);
    let _ = writeln!(out, "## Tensor descriptor\n\n`repr(C)`, {} bytes.\n", size_of::<TensorDesc>());
    let _ = writeln!(out, "| offset | field | type | meaning |\n|---|---|---|---|");
    let fields = [
        (std::mem::offset_of!(TensorDesc, data), "data", "ptr", "first element"),
        (std::mem::offset_of!(TensorDesc, dims), "dims", "ptr", "`rank` extents, i64"),
        (
            std::mem::offset_of!(TensorDesc, strides),
            "strides",
            "ptr",
            "`rank` strides in elements, null when contiguous",
        ),
        (std::mem::offset_of!(TensorDesc, bytes), "bytes", "u64", "bytes of the buffer from `data` on"),
        (std::mem::offset_of!(TensorDesc, rank), "rank", "u32", "number of axes; `u32::MAX` with null data: absent"),
        (std::mem::offset_of!(TensorDesc, dtype), "dtype", "i32", "ONNX element type"),
        (std::mem::offset_of!(TensorDesc, space), "space", "u32", "memory space"),
        (std::mem::offset_of!(TensorDesc, flags), "flags", "u32", "0"),
        (std::mem::offset_of!(TensorDesc, device), "device", "u32", "device id"),
        (std::mem::offset_of!(TensorDesc, reserved), "reserved", "u32", "0"),
    ];
    for (offset, name, ty, meaning) in fields {
        let _ = writeln!(out, "| {offset} | `{name}` | {ty} | {meaning} |");
    }
    let _ = writeln!(
        out,
        "\n## The table\n\nVersion {ABI_VERSION}, {} bytes, hash `{:#018x}`.\n",
        size_of::<Table>(),
        abi_hash()
    );
    let _ = writeln!(out, "| offset | field | arguments | meaning |\n|---|---|---|---|");
    let _ = writeln!(out, "| 0 | `size_bytes` | u64 | size of the table |");
    let _ = writeln!(out, "| 8 | `version` | u64 | version of the table |");
    for (i, f) in FIELDS.iter().enumerate() {
        let args: Vec<String> = f.args.iter().map(|(n, t)| format!("{t} {n}")).collect();
        let _ = writeln!(out, "| {} | `{}` | {} | {} |", 16 + 8 * i, f.name, args.join(", "), f.doc.trim());
    }
    let _ = write!(
        out,
        "{TAIL}\n```console\n$ hip-compiler model.onnx --mode native\nmodel.so\n$ hip-inspect model.so --json\n…\n  \"abi_hash\": \"{:#018x}\",\n…\n```\n",
        abi_hash()
    );
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn docs_are_fresh() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ABI.md");
        let text = super::render_markdown();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let have = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(have == text, "docs/ABI.md is stale: run UPDATE_DOCS=1 cargo test -p hip-ep-runtime docs");
    }

    #[test]
    fn table_and_fields_agree() {
        assert_eq!(size_of::<crate::abi::Table>(), 16 + 8 * super::FIELDS.len());
    }
}
