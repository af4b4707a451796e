//! Pages of `docs/` as tests run them.

/// Title and commands of each section of a page that has blocks fenced as `fence`, in order.
#[must_use]
pub fn sections(page: &str, fence: &str) -> Vec<(String, String)> {
    let opening = format!("```{fence}");
    let mut all: Vec<(String, String)> = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        match line {
            _ if line == opening => is_inside = true,
            "```" => is_inside = false,
            _ if is_inside => {
                if let Some((_, script)) = all.last_mut() {
                    *script += &format!("{line}\n");
                }
            }
            _ => all.extend(
                line.strip_prefix("## ")
                    .map(|title| (title.to_owned(), String::new())),
            ),
        }
    }
    all.retain(|(_, script)| !script.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_those_with_commands() {
        let page = "# x\n## A\n```sh cluster\na\n```\n## B\n```sh\nno\n```\n## C\n```sh cluster\nc\nd\n```\n";
        let found = sections(page, "sh cluster");
        let wanted =
            [("A", "a\n"), ("C", "c\nd\n")].map(|(title, script)| (title.into(), script.into()));
        assert_eq!(found, wanted);
    }
}
