//! Fake compiled models and what they are made of.

use artifact::{Artifact, Builder, DebugNode, Domain, Metadata, Port};
use runtime::abi::{RunCtx, Status, Table, abi_hash};
use runtime::{Code, ConstantStore, ConstantsFrom, Model, Services};
use std::sync::{Arc, OnceLock};
use tensor::DType;

static TABLE: OnceLock<Table> = OnceLock::new();

/// What `init` got.
pub fn table() -> &'static Table {
    TABLE.get().expect("init ran")
}

/// Keeps the table.
pub unsafe extern "C" fn init(t: *const Table) -> Status {
    // SAFETY: the runtime gives its static table.
    let t = unsafe { &*t };
    if t.size_bytes != size_of::<Table>() as u64 || t.version != u64::from(runtime::abi::ABI_VERSION) {
        return 1;
    }
    TABLE.get_or_init(|| *t);
    0
}

/// Returns at once when a call fails, as generated code does.
#[macro_export]
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        let f = $crate::fake::table().$name;
        // SAFETY: the fake program keeps to the ABI.
        #[allow(clippy::macro_metavars_in_unsafe)]
        let status = unsafe { f($($arg),*) };
        if status != 0 {
            return status;
        }
    }};
    (get $name:ident($($arg:expr),* $(,)?)) => {{
        let mut out = 0i64;
        $crate::call!($name($($arg,)* &mut out));
        out
    }};
}

pub fn port(name: &str, dtype: DType, dims: &[&str]) -> Port {
    let fixed: Vec<Option<i64>> = dims.iter().map(|d| d.parse().ok()).collect();
    Port::new(name, dtype, dims.iter().map(|d| d.to_string()).collect(), &fixed)
}

pub fn metadata(inputs: Vec<Port>, outputs: Vec<Port>) -> Metadata {
    Metadata {
        abi_hash: abi_hash(),
        model: "fake".into(),
        frame_words: 4,
        inputs,
        outputs,
        domains: vec![Domain { space: 0, peak: "4*n".into() }],
        debug: vec![
            DebugNode { path: "/first".into(), what: "loops k0".into() },
            DebugNode { path: "/second".into(), what: "kernel test".into() },
        ],
        guards: vec!["input \"x\" axis 0: n must be at most 100".into()],
        ..Metadata::new()
    }
}

pub type RunFn = unsafe extern "C" fn(*mut RunCtx, *mut u64) -> Status;

pub fn code(run: RunFn) -> Code {
    // SAFETY: the fakes keep to the ABI and live as long as the program.
    unsafe { Code::new(init, run, 4, abi_hash(), Arc::new(())) }
}

pub fn artifact(m: &Metadata) -> Arc<Artifact> {
    Arc::new(Artifact::from_bytes(Builder::new(m.clone()).finish().unwrap().into()).unwrap())
}

pub fn model(m: Metadata, run: RunFn) -> Arc<Model> {
    model_with(m, run, Services::default(), &ConstantsFrom::default())
}

pub fn model_with(m: Metadata, run: RunFn, services: Services, from: &ConstantsFrom) -> Arc<Model> {
    Model::with(artifact(&m), code(run), &ConstantStore::new(), from, services).unwrap()
}
