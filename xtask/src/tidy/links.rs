//! Relative links in Markdown lead to a file or folder of the repository.

use std::collections::BTreeSet;

use super::Finding;
use super::source::SourceFile;

/// Every relative link that leads nowhere.
pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let places = places(files);
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_markdown()) {
        for (number, line) in file.code_lines() {
            for target in targets(line) {
                if let Some(problem) = problem(&file.path, target, &places) {
                    findings.push(Finding::at(file, number, format!("link to `{target}`: {problem}")));
                }
            }
        }
    }
    findings
}

/// All files and folders of the repository, the root as the empty path.
fn places(files: &[SourceFile]) -> BTreeSet<String> {
    let mut places = BTreeSet::new();
    for file in files {
        let mut path = file.path.as_str();
        places.insert(path.to_string());
        while let Some((folder, _)) = path.rsplit_once('/') {
            places.insert(folder.to_string());
            path = folder;
        }
    }
    places.insert(String::new());
    places
}

/// Where the links of a line lead: `[text](target "title")` and `[name]: target`.
fn targets(line: &str) -> Vec<&str> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let definition = line
        .trim_start()
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]: "))
        .and_then(|(_, target)| target.split_whitespace().next());
    inline.chain(definition).map(|target| target.trim_matches(['<', '>'])).collect()
}

/// What is wrong with a target in this file; none for one that resolves and for one that leads out into the web.
fn problem(from: &str, target: &str, places: &BTreeSet<String>) -> Option<&'static str> {
    let leads_out = target.contains("://") || target.starts_with("mailto:");
    let path = target.split(['#', '?']).next().unwrap_or(target);
    if leads_out || path.is_empty() {
        return None;
    }
    if path.starts_with('/') {
        return Some("starts at the root of the machine; make it relative to this file");
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => {
                return Some("leaves the repository; link to something inside it");
            }
            ".." => {}
            name => parts.push(name),
        }
    }
    if places.contains(&parts.join("/")) {
        None
    } else {
        Some("there is no such file or folder; mend the path or remove the link")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let others =
            ["README.md", "docs/guide.md", "docs/decisions/one.md"].map(|path| SourceFile::new(path, ""));
        let mut files = vec![SourceFile::new(path, text)];
        files.extend(others);
        check(&files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_that_resolve() {
        let text = "[a](guide.md) [b](../README.md#x) ![c](./decisions/) [d](decisions/one.md \"One\") [e](#here)\n\
                    [f](https://example.org/no.md) [g](mailto:a@example.org) [h](..)\n\
                    [name]: guide.md\n\
                    `[code](none.md)`\n";
        assert_eq!(findings("docs/index.md", text), [] as [String; 0]);
    }

    #[test]
    fn links_that_lead_nowhere() {
        let text = "fine\n[a](guid.md)\n[b]: ../../x.md\n[c](/docs/guide.md)\n";
        let expected = [
            "docs/index.md:2: link to `guid.md`: there is no such file or folder; mend the path or remove the link",
            "docs/index.md:4: link to `/docs/guide.md`: starts at the root of the machine; make it relative to this file",
        ];
        let found = findings("docs/index.md", text);
        assert!(found[1].starts_with("docs/index.md:3: link to `../../x.md`: leaves the repository"));
        assert_eq!([found[0].as_str(), found[2].as_str()], expected);
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn only_markdown_has_links() {
        assert_eq!(findings("a.rs", "// [a](none.md)"), [] as [String; 0]);
    }
}
