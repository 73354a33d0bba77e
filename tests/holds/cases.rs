//! Small models from public bug reports against compilers and runtimes (`tests/cases`), each with the outputs that the operators' text
//! demands: what others got wrong once must be right here.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Cases of what is not there yet, which must be refused with these words; a case leaves the list when it comes.
const NOT_YET: &[(&str, &str)] = &[];

#[test]
fn models_from_bug_reports_give_what_the_text_demands() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut names: Vec<String> = std::fs::read_dir(&dir)
        .expect("the cases are part of the repository")
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert!(names.len() >= 50, "only {} cases", names.len());
    let mut c = Command::new(env!("CARGO_BIN_EXE_hip-test"));
    let out = c.args(["--suite", "--json-lines"]).args(&names).current_dir(&dir).output().expect("the tool starts");
    let text = String::from_utf8_lossy(&out.stdout);
    let mut results: BTreeMap<String, (String, String)> = BTreeMap::new();
    for line in text.lines() {
        let v: serde_json::Value = serde_json::from_str(line).expect("one JSON document per line");
        let word = |key: &str| v[key].as_str().unwrap_or_default().to_string();
        results.insert(word("case"), (word("outcome"), word("reason")));
    }
    let mut wrong = vec![];
    for name in &names {
        let (outcome, reason) = results.get(name).cloned().unwrap_or_default();
        match NOT_YET.iter().find(|(n, _)| n == name) {
            Some((_, words)) if ["refused", "error"].contains(&outcome.as_str()) && reason.contains(words) => {}
            None if outcome == "pass" => {}
            _ => wrong.push(format!("{name}: {outcome}: {reason}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
