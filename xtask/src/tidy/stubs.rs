//! Stub comments: a documentation of one or two words, or one that repeats the item's name.
//!
//! Texts of a command line are not comments: clap prints them as help.

/// Derives that turn documentation into help.
const HELP: [&str; 4] = ["Parser", "Args", "Subcommand", "ValueEnum"];

/// Numbers of the lines at which a stub begins.
pub(crate) fn lines(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let mut stubs = Vec::new();
    let mut help_ends_with: Option<String> = None;
    let mut at = 0;
    while at < lines.len() {
        let indent = &lines[at][..lines[at].len() - lines[at].trim_start().len()];
        if help_ends_with.as_deref() == Some(lines[at]) {
            help_ends_with = None;
        }
        let line = lines[at].trim_start();
        if line.starts_with("#[derive(") && HELP.iter().any(|it| line.contains(it)) {
            help_ends_with = Some(format!("{indent}}}"));
        }
        let length = lines[at..]
            .iter()
            .take_while(|line| doc_of(line).is_some())
            .count();
        if length > 0 && help_ends_with.is_none() {
            let item = item_below(&lines[at + length..]);
            if !item.is_help && is_stub(&lines[at..at + length], item.line) {
                stubs.push(at + 1);
            }
        }
        at += length.max(1);
    }
    stubs
}

fn doc_of(line: &str) -> Option<&str> {
    let doc = line.trim_start().strip_prefix("///")?;
    (!doc.starts_with('/')).then_some(doc)
}

/// The item that a documentation belongs to.
struct Item<'a> {
    line: &'a str,
    is_help: bool,
}

fn item_below<'a>(lines: &[&'a str]) -> Item<'a> {
    let is_help = |line: &&&str| {
        let line = line.trim_start();
        line.starts_with("#[arg(")
            || line.starts_with("#[command(")
            || line.starts_with("#[derive(") && HELP.iter().any(|it| line.contains(it))
    };
    let attributes = lines
        .iter()
        .take_while(|line| line.trim_start().starts_with('#'));
    let mut rest = lines
        .iter()
        .skip_while(|line| line.trim_start().starts_with('#'));
    Item {
        line: rest.next().copied().unwrap_or_default(),
        is_help: attributes.clone().any(|line| is_help(&line)),
    }
}

fn is_stub(doc: &[&str], item: &str) -> bool {
    let text = doc.iter().filter_map(|line| doc_of(line)).map(str::trim);
    // Of a line with ids of requirements, what follows them.
    let own = text.map(|line| match line.strip_prefix("Requirement:") {
        Some(ids) => ids.split_once(". ").map_or("", |(_, text)| text),
        None => line,
    });
    let words: Vec<String> = own
        .flat_map(str::split_whitespace)
        .map(|word| {
            word.trim_matches(|c: char| !c.is_alphanumeric())
                .to_lowercase()
        })
        .filter(|word| !word.is_empty())
        .collect();
    match words.len() {
        1 | 2 => true,
        3 => {
            let names = words_of_name(item);
            words.iter().all(|word| names.contains(word))
        }
        _ => false,
    }
}

/// Words of the names in a line of code: `tls_port`, `TlsPort` and `TLS_PORT` are `tls`, `port`.
fn words_of_name(line: &str) -> Vec<String> {
    let mut spaced = String::new();
    let mut was_lower = false;
    for c in line.chars() {
        if c.is_uppercase() && was_lower || !c.is_alphanumeric() {
            spaced.push(' ');
        }
        was_lower = c.is_lowercase();
        if c.is_alphanumeric() {
            spaced.extend(c.to_lowercase());
        }
    }
    spaced.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_of_one_or_two_words_is_a_stub() {
        assert_eq!(lines("/// Starts.\nfn start() {}\n"), [1]);
        assert_eq!(
            lines("struct A {\n    /// Its name.\n    #[x]\n    name: u8,\n}\n"),
            [2]
        );
        assert_eq!(
            lines("/// Unit: s.\n/// Requirement: N1.\nfn a() {}\n"),
            [1]
        );
    }

    #[test]
    fn comment_of_three_words_is_a_stub_when_the_name_says_them() {
        assert_eq!(
            lines("/// TLS port number.\nfn tls_port_number() {}\n"),
            [1]
        );
        assert!(lines("/// Milliseconds since boot.\nat: u64,\n").is_empty());
    }

    #[test]
    fn help_and_ids_of_requirements_are_no_stubs() {
        assert!(lines("#[derive(Args)]\nstruct A {\n    /// Port\n    port: u16,\n}\n").is_empty());
        assert_eq!(lines("/// Requirement: N17. Holds.\nfn a() {}\n"), [1]);
        let told = "/// Requirement: N17, N18. A guest runs\n/// on.\nfn a() {}\n";
        assert!(lines(told).is_empty());
        assert!(lines("/// Requirement: N17\nfn a() {}\n").is_empty());
        assert_eq!(
            lines("#[derive(Args)]\nstruct A {\n}\n/// Port.\nfn a() {}\n"),
            [4]
        );
    }
}
