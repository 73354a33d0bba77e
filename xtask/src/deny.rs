//! What `deny.toml` asks of packages we depend on: licenses, registries, versions. `cargo deny check`, where it is installed, reads the
//! same file and checks known vulnerabilities, too; this part needs no program besides cargo.

use crate::sh;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub fn run() -> Result<()> {
    let rules: toml::Value = toml::from_str(&std::fs::read_to_string("deny.toml").context("deny.toml")?)?;
    let meta = sh::read(&mut sh::cargo(&["metadata", "--format-version", "1", "--locked"]))?;
    let meta: Value = serde_json::from_str(&meta).context("cargo metadata")?;
    let packages = meta["packages"].as_array().context("cargo metadata lists packages")?;
    let (problems, doubles) = check(&rules, packages)?;
    if !problems.is_empty() {
        bail!("deny.toml:\n{}", problems.join("\n"));
    }
    println!("deny: {} packages; {} in several versions: {}", packages.len(), doubles.len(), doubles.join(", "));
    Ok(())
}

/// What breaks the rules, and packages that occur in several versions (a problem only where the rules deny that).
fn check(rules: &toml::Value, packages: &[Value]) -> Result<(Vec<String>, Vec<String>)> {
    let list = |table: &str, key: &str| -> Vec<&str> {
        let found = rules.get(table).and_then(|t| t.get(key)).and_then(toml::Value::as_array);
        found.into_iter().flatten().filter_map(toml::Value::as_str).collect()
    };
    let level = |table: &str, key: &str| rules.get(table).and_then(|t| t.get(key)).and_then(toml::Value::as_str);
    let allowed = list("licenses", "allow");
    if allowed.is_empty() {
        bail!("deny.toml allows no license");
    }
    let mut problems = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for p in packages {
        let text = |key: &str| p[key].as_str().unwrap_or("");
        let name = format!("{} {}", text("name"), text("version"));
        versions.entry(text("name")).or_default().push(text("version"));
        if !license_allows(text("license"), &allowed) {
            problems.push(format!("{name}: its license {:?} is not on the list", text("license")));
        }
        match p["source"].as_str() {
            None => {}
            Some(s) if s.starts_with("git+") && level("sources", "unknown-git") == Some("deny") => {
                problems.push(format!("{name} comes from {s}, which is no registry"));
            }
            Some(s) if s != CRATES_IO && level("sources", "unknown-registry") == Some("deny") => {
                problems.push(format!("{name} comes from {s}"));
            }
            Some(_) => {}
        }
        // Requirements of our own packages; those of others are theirs.
        for d in p["dependencies"].as_array().into_iter().flatten().filter(|_| p["source"].is_null()) {
            let anything = d["req"] == "*" && d["path"].is_null();
            if anything && level("bans", "wildcards") == Some("deny") {
                problems.push(format!("{name} takes any version of {}", d["name"]));
            }
        }
    }
    let doubles: Vec<String> =
        versions.iter().filter(|(_, v)| v.len() > 1).map(|(name, v)| format!("{name} {}", v.join(" and "))).collect();
    if level("bans", "multiple-versions") == Some("deny") {
        problems.extend(doubles.iter().map(|d| format!("several versions of {d}")));
    }
    Ok((problems, doubles))
}

/// Whether an SPDX expression can be met with licenses of the list. `/` is an old way to write `OR`.
fn license_allows(expression: &str, allowed: &[&str]) -> bool {
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut rest = words.as_slice();
    let met = any_of(&mut rest, allowed);
    met && rest.is_empty()
}

fn any_of(rest: &mut &[&str], allowed: &[&str]) -> bool {
    let mut met = all_of(rest, allowed);
    while let [word, more @ ..] = *rest
        && word.eq_ignore_ascii_case("OR")
    {
        *rest = more;
        met |= all_of(rest, allowed);
    }
    met
}

fn all_of(rest: &mut &[&str], allowed: &[&str]) -> bool {
    let mut met = one(rest, allowed);
    while let [word, more @ ..] = *rest
        && word.eq_ignore_ascii_case("AND")
    {
        *rest = more;
        met &= one(rest, allowed);
    }
    met
}

fn one(rest: &mut &[&str], allowed: &[&str]) -> bool {
    match *rest {
        ["(", more @ ..] => {
            *rest = more;
            let met = any_of(rest, allowed);
            let closed = rest.first() == Some(&")");
            *rest = rest.get(1..).unwrap_or_default();
            met && closed
        }
        [license, with, exception, more @ ..] if with.eq_ignore_ascii_case("WITH") => {
            *rest = more;
            allowed.contains(&format!("{license} WITH {exception}").as_str())
        }
        [license, more @ ..] => {
            *rest = more;
            allowed.contains(license)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn expressions_of_licenses() {
        let allowed = ["MIT", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"];
        for yes in ["MIT", "GPL-3.0 OR MIT", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
            assert!(license_allows(yes, &allowed), "{yes}");
        }
        assert!(license_allows("Apache-2.0 WITH LLVM-exception", &allowed));
        for no in ["", "GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "(MIT", "MIT MIT", "OR"] {
            assert!(!license_allows(no, &allowed), "{no}");
        }
    }

    #[test]
    fn what_breaks_the_rules_is_found() {
        let rules = |versions: &str| -> toml::Value {
            let text = format!(
                "[licenses]\nallow = [\"MIT\"]\n[bans]\nwildcards = \"deny\"\nmultiple-versions = {versions:?}\n\
                 [sources]\nunknown-registry = \"deny\"\nunknown-git = \"deny\""
            );
            toml::from_str(&text).unwrap()
        };
        let package = |version: &str, license: &str, source: Option<&str>, req: &str| {
            json!({"name": "a", "version": version, "license": license, "source": source,
                   "dependencies": [{"name": "b", "req": req}]})
        };
        let good = package("1.0.0", "MIT", Some(CRATES_IO), "*");
        let own = package("0.1.0", "MIT", None, "^1");
        let problems = |p: &[Value], versions: &str| check(&rules(versions), p).unwrap();
        assert_eq!(problems(std::slice::from_ref(&good), "deny"), (vec![], vec![]));
        let both = [good, own];
        assert_eq!(problems(&both, "warn"), (vec![], vec!["a 1.0.0 and 0.1.0".to_string()]));
        assert_eq!(problems(&both, "deny").0, ["several versions of a 1.0.0 and 0.1.0"]);
        for (bad, what) in [
            (package("1.0.0", "GPL-3.0", Some(CRATES_IO), "^1"), "license"),
            (package("1.0.0", "MIT", Some("git+https://example.com/a"), "^1"), "no registry"),
            (package("1.0.0", "MIT", Some("registry+https://example.com/index"), "^1"), "comes from"),
            (package("1.0.0", "MIT", None, "*"), "any version"),
        ] {
            let found = problems(&[bad], "deny").0;
            assert!(found.len() == 1 && found[0].contains(what), "{what}: {found:?}");
        }
    }
}
