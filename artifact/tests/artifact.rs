//! Round trips, damage and limits of the container.

use artifact::constants::{self, ConstantsWriter};
use artifact::metadata::*;
use artifact::{Artifact, Builder, Kind};
use tensor::{DType, ErrorKind};

/// Constants a, b and a2, which equals a, and their file; `byte` fills a.
fn constants_of(byte: u8) -> (([Constant; 3], ConstantsFile), Vec<u8>) {
    let mut w = ConstantsWriter::new(Vec::new()).unwrap();
    let a = w.plain("a", DType::F32, &[3], &[byte; 12]).unwrap();
    let b = w.plain("b", DType::U8, &[5], &[2u8; 5]).unwrap();
    let a2 = w.plain("a2", DType::F32, &[3], &[byte; 12]).unwrap();
    assert_eq!(a.source, a2.source, "equal bytes are written once");
    let (file, bytes) = w.finish().unwrap();
    (([a, b, a2], file), bytes)
}

fn sample() -> (Metadata, Vec<u8>) {
    let (([a, b, a2], file), bytes) = constants_of(1);
    let m = Metadata {
        compiler_version: "0.1.0".into(),
        abi_hash: u64::MAX - 1,
        model: "m".into(),
        target: Some(Target {
            device: "cpu".into(),
            triple: "x86_64-unknown-linux-gnu".into(),
            features: "avx2".into(),
        }),
        inputs: vec![Port::new("x", DType::F32, vec!["batch".into(), "3".into()], &[None, Some(3)])],
        outputs: vec![Port::new("y", DType::F16, vec!["batch*2".into()], &[None])],
        aliases: vec![Alias { input: 0, output: 0 }],
        constants: vec![
            a,
            b,
            a2,
            constants::external("w", DType::F64, &[2, 2], "w.bin", 17).unwrap(),
            constants::splat("s", DType::F32, &[1000, 1000], &[0, 0, 128, 63]).unwrap(),
        ],
        constants_file: Some(file),
        domains: vec![Domain { space: 0, peak: "256*batch".into() }],
        kernels: vec![
            Kernel {
                name: "k0".into(),
                kind: "loops".into(),
                id: None,
                gpu: Some(GpuLaunch { schedule: "grid-stride".into(), block: 256, vector: 4 }),
            },
            Kernel { name: "gemm.f32".into(), kind: "catalog".into(), id: Some(0), gpu: None },
        ],
        debug: vec![DebugNode { path: "/a/MatMul".into(), what: "kernel gemm.f32".into() }],
        guards: vec!["extents of x and y are equal".into()],
        symbols: vec![Symbol {
            name: "batch".into(),
            lo: 1,
            hi: i64::MAX,
            multiple_of: 1,
            origin: "input x axis 0".into(),
        }],
        counts: vec![Count { what: "onnx nodes".into(), n: 12 }],
        ..Metadata::new()
    };
    (m, bytes)
}

fn build(m: &Metadata) -> Vec<u8> {
    let mut b = Builder::new(m.clone());
    b.section(Kind::HostObject, "t+avx2", vec![1, 2, 3]).section(Kind::HostObject, "t", vec![4]).section(
        Kind::HostBitcode,
        "",
        vec![9; 100],
    );
    b.finish().unwrap()
}

#[test]
fn gpu_code_joins_an_artifact_of_metadata() {
    let (m, _) = sample();
    let a = || Artifact::from_metadata(&prost::Message::encode_to_vec(&m), None).unwrap();
    let code =
        [("hip:gfx942/generated".to_string(), vec![1u8; 70].into()), ("cuda:sm_90/catalog".into(), vec![2u8].into())];
    let both = a().with_gpu_code(&code).unwrap();
    both.verify().unwrap();
    assert!(code.iter().all(|(label, bytes)| both.section(Kind::GpuCode, label).as_ref() == Some(bytes)));
    assert!(both.sections().iter().all(|s| s.offset.is_multiple_of(64)));
    assert!(both.with_gpu_code(&code[..1]).unwrap_err().to_string().contains("two sections of GPU code"));
}

#[test]
fn round_trip_is_exact_and_deterministic() {
    let (m, consts) = sample();
    let bytes = build(&m);
    assert_eq!(bytes, build(&m));
    let a = Artifact::from_bytes(bytes.into()).unwrap();
    assert_eq!(a.metadata(), &m);
    a.verify().unwrap();
    assert_eq!(a.section(Kind::HostObject, "t").as_deref(), Some(&[4u8][..]));
    assert_eq!(
        a.sections_of(Kind::HostObject).map(|(l, b)| (l.to_string(), b.len())).collect::<Vec<_>>(),
        [("t".to_string(), 1), ("t+avx2".to_string(), 3)]
    );
    assert!(a.sections().iter().all(|s| s.offset % 64 == 0));
    let json = m.to_json().unwrap();
    assert_eq!(Metadata::from_json(&json).unwrap(), m);
    assert!(json.contains("\"dtype\": \"f32\"") && json.contains("0xfffffffffffffffe"), "{json}");
    constants::verify(&consts.into(), &m).unwrap();
}

#[test]
fn files_round_trip() {
    let dir = std::env::temp_dir().join(format!("hip-ep-artifact-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (m, consts) = sample();
    let path = dir.join("m.hipep");
    Builder::new(m.clone()).write(&path).unwrap();
    let side = artifact::constants_path(&path);
    constants::write_beside(&side, |f| std::io::Write::write_all(f, &consts)).unwrap();
    let a = Artifact::open(&path).unwrap();
    assert_eq!(a.path(), Some(path.as_path()));
    let mapped = constants::open(&side, a.metadata()).unwrap();
    constants::verify(&mapped, a.metadata()).unwrap();
    std::fs::write(&side, &consts[..consts.len() - 1]).unwrap();
    assert_eq!(constants::open(&side, a.metadata()).unwrap_err().kind(), ErrorKind::Malformed);
    // The file of a model with other weights of the same sizes, and the same file with a damaged id.
    let (_, other) = constants_of(3);
    let mut damaged = consts.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for stale in [other, damaged] {
        assert_eq!(stale.len(), consts.len());
        std::fs::write(&side, stale).unwrap();
        let e = constants::open(&side, a.metadata()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Malformed);
        assert!(e.to_string().contains("belongs to another model"), "{e}");
    }
    let e = Artifact::open(dir.join("none")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io);
    std::fs::remove_dir_all(&dir).unwrap();
}

fn check_refused(bytes: Vec<u8>, words: &str) {
    let e = Artifact::from_bytes(bytes.into()).and_then(|a| a.verify()).expect_err(words);
    assert!(e.to_string().contains(words), "{words:?} not in: {e}");
}

#[test]
fn damage_is_told() {
    let good = build(&sample().0);
    let with = |at: usize, byte: u8| {
        let mut b = good.clone();
        b[at] ^= byte;
        b
    };
    check_refused(Vec::new(), "no compiled model");
    check_refused(
        b"\x08\x07\x12\x07pytorch and more of an ONNX file, long enough for a header".to_vec(),
        "no compiled model",
    );
    check_refused(good[..40].to_vec(), "cut short");
    check_refused(good[..good.len() - 1].to_vec(), "its header says");
    check_refused(with(8, 2), "container version 3");
    check_refused(with(60, 1), "header of the artifact is damaged");
    check_refused(with(64, 1), "header of the artifact is damaged");
    check_refused(with(good.len() - 1, 1), "is damaged");
}

#[test]
fn a_section_that_is_used_is_compared_with_its_hash() {
    let mut bytes = build(&sample().0);
    let (kind, label) = (Kind::HostObject, "t+avx2");
    let of = |bytes: Vec<u8>| Artifact::from_bytes(bytes.into()).unwrap();
    let whole = of(bytes.clone());
    assert_eq!(whole.intact(kind, label).unwrap(), whole.section(kind, label));
    assert_eq!(whole.intact(kind, "other").unwrap(), None);
    let s = whole.sections().iter().find(|s| s.label == label).unwrap();
    bytes[s.offset as usize] ^= 1;
    let damaged = of(bytes);
    let e = damaged.intact(kind, label).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Malformed);
    assert!(e.to_string().contains("section HostObject \"t+avx2\" is damaged"), "{e}");
    // The others are not read.
    assert!(damaged.intact(kind, "t").unwrap().is_some());
}

fn check_metadata(change: impl FnOnce(&mut Metadata), words: &str) {
    let (mut m, _) = sample();
    change(&mut m);
    let e = m.check().expect_err(words);
    assert!(e.to_string().contains(words), "{words:?} not in: {e}");
    assert!(Metadata::decode_checked(&prost::Message::encode_to_vec(&m)).is_err());
}

#[test]
fn impossible_metadata_is_refused() {
    check_metadata(|m| m.format_version = 9, "format 9");
    check_metadata(|m| m.inputs[0].dtype = 99, "99 is not an element type");
    check_metadata(|m| m.inputs[0].fixed = vec![], "2 dims but extents []");
    check_metadata(|m| m.aliases[0].output = 1, "do not exist");
    check_metadata(|m| m.constants[0].bytes = 13, "the table says 13");
    check_metadata(|m| m.constants[0].shape = vec![u64::MAX, 2], "takes None bytes");
    check_metadata(|m| m.constants[0].source = None, "without a source");
    check_metadata(|m| m.constants[0].source = Some(Source::Offset(u64::MAX - 63)), "of a constants file");
    check_metadata(|m| m.constants[0].source = Some(Source::Offset(65)), "of a constants file");
    check_metadata(|m| m.constants[0].layout = "packed".into(), "unknown layout");
    check_metadata(|m| m.constants[4].source = Some(Source::Splat(vec![])), "element of 0 bytes");
    let external = |path: &str| Some(Source::External(ExternalRange { path: path.into(), offset: 0 }));
    check_metadata(|m| m.constants[3].source = external(""), "of file \"\"");
    check_metadata(|m| m.constants[3].source = external("a\0"), "of file");
    check_metadata(|m| m.domains[0].space = 3, "space 3");
    check_metadata(|m| m.kernels[0].kind = "odd".into(), "kind \"odd\"");
}

#[test]
fn metadata_takes_bounded_memory() {
    // Two bytes each of an empty debug node.
    let many = [0x82, 0x01, 0x00].repeat(MAX_ENTRIES + 1);
    assert_eq!(Metadata::decode_checked(&many).unwrap_err().kind(), ErrorKind::Limit);
    assert_eq!(Metadata::decode_checked(&vec![0; MAX_METADATA_BYTES + 1]).unwrap_err().kind(), ErrorKind::Limit);
    assert_eq!(Metadata::decode_checked(&[0x82]).unwrap_err().kind(), ErrorKind::Malformed);
}

#[test]
fn mutated_artifacts_never_panic() {
    let good = build(&sample().0);
    assert_eq!(artifact::fuzz::open(&good), 2);
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut opened = 0;
    for _ in 0..4000 {
        let mut b = good.clone();
        for _ in 0..1 + next() % 4 {
            let at = next() as usize % b.len();
            b[at] = next() as u8;
        }
        b.truncate(b.len() - (next() as usize % 8) * usize::from(next() % 4 == 0));
        opened += artifact::fuzz::open(&b);
    }
    assert!(opened > 500, "only {opened} mutants got past the header: the repair does not work");
}

#[test]
fn splats_fill_whole_bytes() {
    let of = |d, e: &[u8]| constants::splat("s", d, &[3], e).map(|c| c.source).ok().flatten();
    assert_eq!(of(DType::I4, &[0x05]), Some(Source::Splat(vec![0x55])));
    assert_eq!(of(DType::I4, &[0x55]), Some(Source::Splat(vec![0x55])));
    assert_eq!(of(DType::U2, &[2]), Some(Source::Splat(vec![0xaa])));
    assert_eq!(of(DType::F16, &[1, 2, 0, 0]), Some(Source::Splat(vec![1, 2])));
    assert_eq!(of(DType::U8, &[7]), Some(Source::Splat(vec![7])));
    assert_eq!(of(DType::F32, &[1, 2]), None);
}
