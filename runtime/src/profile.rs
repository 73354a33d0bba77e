//! What a run did and how long each part took. Counters are always kept; times only when asked for.

use crate::device::{Device, Event};
use std::fmt::Write;
use std::time::Instant;

/// How often a run did what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Generated kernels launched.
    pub launches: u64,
    /// Catalog kernels called.
    pub kernel_calls: u64,
    /// Host ops run.
    pub host_ops: u64,
    /// Copies the program asked for, but for those of memory to itself.
    pub copies: u64,
    /// Bytes of those.
    pub copied_bytes: u64,
    /// Waits for the stream before the run's end: values read back, host ops, constants uploaded.
    pub syncs: u64,
    /// Extents the program stored to memory.
    pub stores: u64,
    /// Times a pool had to grow.
    pub pool_growths: u64,
    /// Outputs asked for.
    pub outputs: u64,
    /// Outputs that were written where an input is.
    pub shared_outputs: u64,
    /// Inputs that had to be copied: strided, unaligned or in another space.
    pub input_copies: u64,
    /// Outputs that were copied to the caller's memory because the device cannot write there.
    pub output_copies: u64,
    /// Constants copied to the device; each once per device.
    pub constant_copies: u64,
}

/// One thing that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// `launch`, `kernel`, `host op`, `copy`, `readback`.
    pub kind: &'static str,
    /// Index into the debug table.
    pub node: u32,
    /// The model node's path.
    pub path: String,
    /// What ran: `loops k3`, `kernel gemm.f32`.
    pub what: String,
    /// Start, from the start of the run.
    pub start_ns: u64,
    /// Duration.
    pub time_ns: u64,
    /// Bytes moved, where known.
    pub bytes: Option<u64>,
}

/// Memory of a run context at a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPoint {
    /// From the start of the run.
    pub at_ns: u64,
    /// Pool domain that was reserved, or `u32::MAX` for an output.
    pub domain: u32,
    /// Bytes the program asked for.
    pub bytes: u64,
    /// Bytes of all domains and outputs asked for so far in this run.
    pub total_bytes: u64,
}

/// Times of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// What ran, in order.
    pub ops: Vec<Op>,
    /// Reserved memory over time.
    pub memory: Vec<MemoryPoint>,
    /// Time of the whole run.
    pub total_ns: u64,
    /// Threads the run had.
    pub threads: usize,
}

/// What a run reports.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// How often it did what.
    pub counters: Counters,
    /// Times, when asked for.
    pub profile: Option<Profile>,
}

/// One line of [`Profile::by_what`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Total {
    /// Kind and what.
    pub what: String,
    /// How often.
    pub n: usize,
    /// Sum of times.
    pub time_ns: u64,
}

impl Profile {
    /// Times summed by what ran, longest first.
    pub fn by_what(&self) -> Vec<Total> {
        let mut sums = std::collections::BTreeMap::<(&str, &str), (usize, u64)>::new();
        for op in &self.ops {
            let s = sums.entry((op.kind, &op.what)).or_default();
            *s = (s.0 + 1, s.1.saturating_add(op.time_ns));
        }
        let mut all: Vec<Total> =
            sums.into_iter().map(|((k, w), (n, time_ns))| Total { what: format!("{k} {w}"), n, time_ns }).collect();
        all.sort_by(|a, b| b.time_ns.cmp(&a.time_ns).then_with(|| a.what.cmp(&b.what)));
        all
    }

    /// A table of ops, longest first, at most `n_lines` of them.
    pub fn table(&self, n_lines: usize) -> String {
        let mut out = String::new();
        let us = |ns: u64| format!("{}.{:03}", ns / 1000, ns % 1000);
        let _ = writeln!(out, "{:>12} {:>7}  {:<28} node", "time [us]", "share", "what");
        let mut ops: Vec<&Op> = self.ops.iter().collect();
        ops.sort_by(|a, b| b.time_ns.cmp(&a.time_ns).then(a.start_ns.cmp(&b.start_ns)));
        for op in ops.iter().take(n_lines) {
            let per_mille = op.time_ns.saturating_mul(1000) / self.total_ns.max(1);
            let share = format!("{}.{} %", per_mille / 10, per_mille % 10);
            let rate = match op.bytes {
                Some(b) if op.time_ns > 0 => format!("  {} MB/s", b.saturating_mul(1000) / op.time_ns),
                _ => String::new(),
            };
            let _ = writeln!(out, "{:>12} {share:>7}  {:<28} {}{rate}", us(op.time_ns), op.what, op.path);
        }
        let between = self.total_ns.saturating_sub(self.ops.iter().map(|op| op.time_ns).sum());
        let per_mille = between.saturating_mul(1000) / self.total_ns.max(1);
        let share = format!("{}.{} %", per_mille / 10, per_mille % 10);
        let _ = writeln!(out, "{:>12} {share:>7}  between ops: sizes, memory, waiting for threads", us(between));
        let _ = writeln!(out, "{:>12} {:>7}  total of {} ops", us(self.total_ns), "100 %", self.ops.len());
        out
    }

    /// The trace as JSON for `chrome://tracing` and Perfetto.
    pub fn chrome_trace(&self) -> String {
        let mut out = String::from("{\"traceEvents\":[\n");
        let us = |ns: u64| format!("{}.{:03}", ns / 1000, ns % 1000);
        let mut first = true;
        let mut line = |out: &mut String, text: String| {
            out.push_str(if std::mem::take(&mut first) { "" } else { ",\n" });
            out.push_str(&text);
        };
        for op in &self.ops {
            let bytes = op.bytes.map_or(String::new(), |b| format!(",\"bytes\":{b}"));
            let text = format!(
                "{{\"name\":{},\"cat\":{},\"ph\":\"X\",\"ts\":{},\"dur\":{},\"pid\":1,\"tid\":1,\"args\":{{\"node\":{}{bytes}}}}}",
                json_string(&op.what),
                json_string(op.kind),
                us(op.start_ns),
                us(op.time_ns),
                json_string(&op.path)
            );
            line(&mut out, text);
        }
        for m in &self.memory {
            let (ts, total) = (us(m.at_ns), m.total_bytes);
            let text =
                format!("{{\"name\":\"memory\",\"ph\":\"C\",\"ts\":{ts},\"pid\":1,\"args\":{{\"bytes\":{total}}}}}");
            line(&mut out, text);
        }
        out.push_str("\n]}\n");
        out
    }
}

/// A JSON string with quotes.
fn json_string(s: &str) -> String {
    let mut out = String::from("\"");
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out + "\""
}

/// Collects a run's times while it runs. Without a start it does nothing.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    start: Option<Instant>,
    pub(crate) ops: Vec<RawOp>,
    pub(crate) memory: Vec<MemoryPoint>,
    total_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct RawOp {
    pub(crate) kind: &'static str,
    pub(crate) node: u32,
    pub(crate) start_ns: u64,
    pub(crate) time_ns: u64,
    pub(crate) bytes: Option<u64>,
    /// Begin and end in the stream, on devices that return before their work is done.
    pub(crate) events: Option<(Event, Event)>,
}

impl Recorder {
    pub(crate) fn new(on: bool) -> Recorder {
        Recorder { start: on.then(Instant::now), ..Recorder::default() }
    }
    pub(crate) fn is_on(&self) -> bool {
        self.start.is_some()
    }
    pub(crate) fn now_ns(&self) -> u64 {
        self.start.map_or(0, |s| u64::try_from(s.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
    pub(crate) fn op(
        &mut self,
        kind: &'static str,
        node: u32,
        start_ns: u64,
        bytes: Option<u64>,
        events: Option<(Event, Event)>,
    ) {
        if self.is_on() {
            let time_ns = self.now_ns().saturating_sub(start_ns);
            self.ops.push(RawOp { kind, node, start_ns, time_ns, bytes, events });
        }
    }
    /// Replaces the host's times by the device's, after the stream was waited for: `first` was recorded at `first_ns`.
    pub(crate) fn resolve(&mut self, device: &dyn Device, first: Option<(Event, u64)>) {
        for op in &mut self.ops {
            let Some((from, to)) = op.events.take() else { continue };
            if let Some((first, first_ns)) = first
                && let (Ok(start), Ok(time)) = (device.elapsed_ns(first, from), device.elapsed_ns(from, to))
            {
                (op.start_ns, op.time_ns) = (first_ns.saturating_add(start), time);
            }
            device.forget(from);
            device.forget(to);
        }
        if let Some((first, _)) = first {
            device.forget(first);
        }
    }
    pub(crate) fn memory(&mut self, domain: u32, bytes: usize) {
        if self.is_on() {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            self.total_bytes = self.total_bytes.saturating_add(bytes);
            let (at_ns, total_bytes) = (self.now_ns(), self.total_bytes);
            self.memory.push(MemoryPoint { at_ns, domain, bytes, total_bytes });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(what: &str, start_ns: u64, time_ns: u64) -> Op {
        Op {
            kind: "launch",
            node: 0,
            path: "/a\"b\\\n".into(),
            what: what.into(),
            start_ns,
            time_ns,
            bytes: Some(2000),
        }
    }

    #[test]
    fn reports_print() {
        let memory = vec![MemoryPoint { at_ns: 1, domain: 0, bytes: 64, total_bytes: 64 }];
        let p = Profile {
            ops: vec![op("k0", 0, 1500), op("k1", 1500, 2500), op("k0", 4000, 2000)],
            memory,
            total_ns: 8000,
            threads: 2,
        };
        assert_eq!(p.by_what()[0], Total { what: "launch k0".into(), n: 2, time_ns: 3500 });
        let t = p.table(1);
        assert!(t.contains("2.500  31.2 %  k1") && t.contains("800 MB/s") && t.contains("total of 3 ops"), "{t}");
        assert!(t.contains("2.000  25.0 %  between ops"), "{t}");
        let json = p.chrome_trace();
        assert!(json.contains(r#""args":{"node":"/a\"b\\\u000a","bytes":2000}"#), "{json}");
        assert!(json.contains(r#""ph":"C","ts":0.001"#) && json.ends_with("]}\n"));
    }
}
