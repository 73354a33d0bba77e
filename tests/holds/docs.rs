//! What the pages show is so: each command runs and prints what its page says, each link leads somewhere, no page is long.
//!
//! In a `console` block a line `$ COMMAND` is run and the lines after it are its output, standard error included; `…` stands for any
//! text, on a line of its own for any number of lines. The lines of an `sh` block are run as one script. Commands of a page run in
//! its order in a folder that holds `docs/model.hir` and the same model as `model.hir` and `model.onnx`.

use super::kit::Folder;
use hip_ep::{CompiledModel, Compiler, DeviceKind, RunInputs, Tensor};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Pages without commands of their own: text about the source tree, and one whose commands `cargo xtask` runs.
const NO_COMMANDS: &[&str] = &["ARCHITECTURE.md", "CONTRIBUTING.md"];
/// Generated lists, which are as long as what they list.
const LISTS: &[&str] = &["docs/OPS.md"];
/// Two pages of print.
const MOST_LINES: usize = 120;
const MOST_WORDS: usize = 1500;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every page, by its path from the root, with its text.
fn pages() -> Vec<(String, String)> {
    let mut names: Vec<String> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(String::from).into();
    for entry in std::fs::read_dir(root().join("docs")).expect("the folder docs") {
        let name = entry.expect("an entry of docs").file_name().into_string().expect("a name in UTF-8");
        if name.ends_with(".md") {
            names.push(format!("docs/{name}"));
        }
    }
    names.sort();
    let read = |n: &String| std::fs::read_to_string(root().join(n)).expect("a page");
    names.iter().map(|n| (n.clone(), read(n))).collect()
}

/// A fenced block: the line it starts on, its language, its lines.
struct Block<'t> {
    line: usize,
    language: &'t str,
    lines: Vec<&'t str>,
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut found: Vec<Block<'_>> = Vec::new();
    let mut open = false;
    for (i, line) in text.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(_) if open => open = false,
            Some(language) => {
                open = true;
                found.push(Block { line: i + 1, language: language.trim(), lines: Vec::new() });
            }
            None if open => found.last_mut().expect("a block is open").lines.push(line),
            None => {}
        }
    }
    assert!(!open, "a block is not closed");
    found
}

/// A command and, where the page shows it, its output.
struct Shown<'t> {
    command: String,
    output: Option<Vec<&'t str>>,
}

fn commands<'t>(block: &Block<'t>) -> Vec<Shown<'t>> {
    if block.language == "sh" {
        return vec![Shown { command: block.lines.join("\n"), output: None }];
    }
    let mut found: Vec<Shown<'t>> = Vec::new();
    for line in &block.lines {
        match (line.strip_prefix("$ "), found.last_mut()) {
            (Some(command), _) => found.push(Shown { command: command.into(), output: Some(Vec::new()) }),
            (None, Some(last)) => last.output.get_or_insert_default().push(line),
            (None, None) => panic!("a console block starts with output: {line:?}"),
        }
    }
    found
}

/// Whether a line is what the page shows, where `…` stands for any text.
fn line_matches(shown: &str, line: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or("")) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Whether lines are what the page shows, where a line `…` stands for any number of them.
fn lines_match(shown: &[&str], lines: &[&str]) -> bool {
    match (shown.split_first(), lines.split_first()) {
        (None, None) => true,
        (Some((&"…", more)), _) => (0..=lines.len()).any(|n| lines_match(more, &lines[n..])),
        (Some((s, more)), Some((l, rest))) => line_matches(s.trim_end(), l.trim_end()) && lines_match(more, rest),
        _ => false,
    }
}

/// The tools' folder in front of the others.
fn path() -> std::ffi::OsString {
    let tools = Path::new(env!("CARGO_BIN_EXE_hip-opt")).parent().expect("a folder").to_path_buf();
    let old = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(std::iter::once(tools).chain(std::env::split_paths(&old))).expect("folders without ':'")
}

fn shell(folder: &Path, script: &str) -> (bool, String) {
    let mut c = Command::new("bash");
    c.args(["-euo", "pipefail", "-c", &format!("exec 2>&1\n{script}")]).current_dir(folder).env("PATH", path());
    let out = c.env_remove("RUST_LOG").output().expect("bash is there");
    (out.status.success(), String::from_utf8_lossy(&out.stdout).into_owned())
}

/// A folder with the model that pages speak of.
fn folder(name: &str) -> Folder {
    let f = Folder::new(&format!("docs-{}", name.replace(['/', '.'], "-")));
    let model = std::fs::read(root().join("docs/model.hir")).expect("the pages' model");
    std::fs::create_dir_all(f.file("docs")).expect("the folder is ours");
    for to in ["docs/model.hir", "model.hir"] {
        std::fs::write(f.file(to), &model).expect("the folder is ours");
    }
    let (done, said) = shell(f.path(), "hip-opt model.hir --stop-after infer --emit onnx -o model.onnx");
    assert!(done, "{said}");
    f
}

#[test]
fn commands_of_every_page_run() {
    let mut problems = Vec::new();
    let mut ran = 0;
    for (name, text) in pages() {
        let blocks: Vec<_> = blocks(&text).into_iter().filter(|b| ["sh", "console"].contains(&b.language)).collect();
        if blocks.is_empty() && !NO_COMMANDS.contains(&name.as_str()) {
            problems.push(format!("{name} shows no command"));
        }
        let folder = folder(&name);
        for block in &blocks {
            for shown in commands(block) {
                ran += 1;
                let (done, said) = shell(folder.path(), &shown.command);
                let at = format!("{name}:{}: {}", block.line, shown.command);
                // A page may show how something is refused.
                let refusal = shown.output.iter().flatten().any(|l| l.starts_with("error: "));
                if done == refusal {
                    problems.push(format!("{at}\nends with {}:\n{said}", if done { "success" } else { "failure" }));
                } else if let Some(want) = &shown.output
                    && !lines_match(want, &said.trim_end().lines().collect::<Vec<_>>())
                {
                    problems.push(format!("{at}\nprints:\n{said}\nand the page shows:\n{}", want.join("\n")));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
    assert!(ran > 20, "only {ran} commands were found");
}

/// No command hides in a block that is not run.
#[test]
fn commands_stand_in_blocks_that_run() {
    const XTASK: [&str; 2] = ["cargo xtask demo", "cargo xtask test"]; // the README's; running them here would take half an hour
    for (name, text) in pages() {
        for b in blocks(&text) {
            for line in b.lines.iter().filter(|_| !["sh", "console"].contains(&b.language)) {
                let command = line.trim_start().trim_start_matches("$ ");
                let is_command = line.starts_with("$ ") || command.starts_with("hip-") || command.starts_with("cargo ");
                let may = XTASK.iter().any(|x| command.starts_with(x));
                assert!(!is_command || may, "{name}:{}: {line:?} is a command in a block that is not run", b.line);
            }
        }
    }
}

#[test]
fn links_lead_somewhere() {
    let mut n = 0;
    for (name, text) in pages() {
        let base: PathBuf = root().join(&name).parent().expect("a folder").into();
        for target in text.split("](").skip(1).filter_map(|t| t.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            n += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { root().join(&name) } else { base.join(file) };
            assert!(path.exists(), "{name} links to {target}, which does not exist");
            let heading = |l: &str| l.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            let page = std::fs::read_to_string(&path).unwrap_or_default();
            let found = page.lines().filter(|l| l.starts_with('#')).any(|l| heading(l) == anchor);
            assert!(anchor.is_empty() || found, "{name} links to {target}, which has no such heading");
        }
        // Files of the tree that the text names.
        for word in text.split('`').skip(1).step_by(2) {
            let is_path = word.contains('/') && [".rs", ".md", ".hir", ".toml"].iter().any(|e| word.ends_with(e));
            if is_path && !word.contains(['<', '*', ' ', '…']) {
                n += 1;
                assert!(root().join(word).exists(), "{name} names {word}, which does not exist");
            }
        }
    }
    assert!(n > 20, "only {n} links were found");
}

#[test]
fn pages_are_short() {
    for (name, text) in pages().iter().filter(|(n, _)| !LISTS.contains(&n.as_str())) {
        let (lines, words) = (text.lines().count(), text.split_whitespace().count());
        assert!(lines <= MOST_LINES && words <= MOST_WORDS, "{name} has {lines} lines and {words} words");
    }
}

/// The README's snippet, word for word.
#[rustfmt::skip]
fn readme_snippet() -> hip_ep::Result<(Vec<Tensor>, hip_ep::runtime::Report)> {
    // README
    Compiler::new().compile_path("model.onnx")?.save("model.hipep")?;
    let session = CompiledModel::load("model.hipep")?.session(DeviceKind::Cpu, Default::default())?;
    let x = Tensor::from_f32(&[1, 1, 4], &[1.0, 2.0, 3.0, 4.0]);
    let (outputs, report) = session.collect(&RunInputs::in_order(&[x]), &Default::default())?;
    // end
    Ok((outputs, report))
}

#[test]
fn snippet_of_the_readme_runs() {
    const CHILD: &str = "HIP_EP_README_CHILD";
    // File names without a folder: a process of its own, in a folder of its own.
    if std::env::var_os(CHILD).is_some() {
        let (outputs, report) = readme_snippet().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(outputs[0].shape(), [1, 1, 8]);
        let sum: f64 = outputs[0].to_f64_vec().iter().sum();
        assert!((sum - 1.0).abs() < 1e-6 && report.counters.launches > 0, "a softmax sums to 1, not {sum}");
        return;
    }
    let words = |t: &str| t.split_whitespace().collect::<Vec<_>>().join(" ");
    let source = include_str!("docs.rs");
    let code = source.split("// README").nth(1).and_then(|s| s.split("// end").next()).expect("the function above");
    let (_, readme) = pages().into_iter().find(|p| p.0 == "README.md").expect("the README");
    let shown = blocks(&readme).into_iter().find(|b| b.language == "rust").expect("the README's snippet");
    let body: Vec<&str> = shown.lines.iter().copied().filter(|l| !l.starts_with("use ")).collect();
    assert_eq!(words(&body.join("\n")), words(code), "the README's snippet is not what this test runs");
    let folder = folder("readme-snippet");
    let mut c = Command::new(std::env::current_exe().expect("a path"));
    c.args(["--exact", "holds::docs::snippet_of_the_readme_runs"]).env(CHILD, "1").current_dir(folder.path());
    let out = c.output().expect("this test starts itself");
    let said = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.contains("1 passed"), "{said}");
    assert!(folder.file("model.hipep").exists(), "{said}");
}

#[test]
fn what_differs_does_not_match() {
    assert!(line_matches("a … c", "a b c") && line_matches("…", "") && line_matches("x…", "x"));
    assert!(!line_matches("a … c", "a b d") && !line_matches("a", "ab") && !line_matches("a…a", "a"));
    assert!(lines_match(&["a", "…", "b"], &["a", "b"]) && lines_match(&["…", "b", "…"], &["a", "b", "c"]));
    assert!(!lines_match(&["a", "…", "b"], &["a", "c"]) && !lines_match(&[], &["a"]) && !lines_match(&["a"], &[]));
}
