//! Whether this machine runs the code of a model: an instruction it lacks would end the process.

use tensor::{Diagnostic, ErrorKind, Result};

macro_rules! detect {
    ($name:expr, $($feature:tt),*) => {
        match $name {
            $($feature => Some(std::is_x86_feature_detected!($feature)),)*
            _ => None,
        }
    };
}

/// Whether this machine has a feature by LLVM's name; `None` for names that are not checked.
#[cfg(target_arch = "x86_64")]
fn has(feature: &str) -> Option<bool> {
    // LLVM's name where the library has another one.
    let name = match feature {
        "bmi" => "bmi1",
        "pclmul" => "pclmulqdq",
        "cx16" => "cmpxchg16b",
        "rdrnd" => "rdrand",
        other => other,
    };
    detect!(
        name,
        "sse3",
        "ssse3",
        "sse4.1",
        "sse4.2",
        "sse4a",
        "popcnt",
        "lzcnt",
        "movbe",
        "cmpxchg16b",
        "aes",
        "pclmulqdq",
        "rdrand",
        "rdseed",
        "adx",
        "sha",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "bmi1",
        "bmi2",
        "gfni",
        "vaes",
        "vpclmulqdq",
        "avx512f",
        "avx512bw",
        "avx512cd",
        "avx512dq",
        "avx512vl",
        "avx512ifma",
        "avx512vbmi",
        "avx512vbmi2",
        "avx512bitalg",
        "avx512vpopcntdq",
        "avx512vnni",
        "avx512bf16",
        "avx512fp16",
        "avxvnni"
    )
}

/// Whether a machine can be asked for a feature by LLVM's name, so that code which uses it is refused where it is missing. Code that
/// is to run on other machines may use no other features.
pub fn is_checked(feature: &str) -> bool {
    has(feature).is_some()
}

#[cfg(not(target_arch = "x86_64"))]
fn has(_: &str) -> Option<bool> {
    None
}

/// What the levels of x86-64 add.
const LEVELS: &[(&str, &[&str])] = &[
    ("x86-64-v2", &["sse4.2", "popcnt"]),
    ("x86-64-v3", &["avx2", "fma", "f16c", "bmi1", "bmi2", "lzcnt", "movbe"]),
    ("x86-64-v4", &["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]),
];

/// Refuses code for a machine that has more than this one. `features` are levels and features, comma separated; a feature may carry
/// a `+`, one with `-` is not used.
pub(crate) fn check(features: &str) -> Result<()> {
    check_with(features, &has)
}

fn check_with(features: &str, has: &dyn Fn(&str) -> Option<bool>) -> Result<()> {
    let mut missing: Vec<&str> = Vec::new();
    for f in features.split(',').map(str::trim).filter(|f| !f.starts_with('-')).map(|f| f.trim_start_matches('+')) {
        let needs: &[&str] = LEVELS.iter().find(|(n, _)| *n == f).map_or(std::slice::from_ref(&f), |(_, all)| all);
        missing.extend(needs.iter().filter(|n| has(n) == Some(false)));
    }
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    let text = format!("the model was compiled for a processor with {}, which this machine lacks", missing.join(", "));
    Err(Diagnostic::new(ErrorKind::Unsupported, text)
        .help("compile it for this machine or for an older level, as x86-64-v2"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let old = |f: &str| Some(matches!(f, "sse4.2" | "popcnt"));
        let check = |features: &str| check_with(features, &old).map_err(|e| e.message().to_string());
        assert_eq!(check("x86-64-v2"), Ok(()));
        assert_eq!(check("+sse4.2,-avx2"), Ok(()));
        let e = check("x86-64-v3").unwrap_err();
        assert!(e.contains("avx2, fma, f16c"), "{e}");
        assert!(check("+avx512f,+popcnt").unwrap_err().contains("with avx512f,"));
        assert!(super::check("").is_ok() && super::check("x86-64,some-later-name").is_ok());
    }
}
