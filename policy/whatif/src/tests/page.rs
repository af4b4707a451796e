//! The report as text and as a page.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest as _, Sha256};

use super::{Always, candidate, history, stretch};
use crate::columns::Window;
use crate::{Report, Title, Tried, page};

fn tried(name: &str) -> Tried {
    let mut history = history(vec![stretch(2, 600, |_| (0.5, 0.3))]);
    history.name = name.to_owned();
    Tried::new(
        &history,
        1,
        &candidate(),
        &mut Always(Ok(4)),
        Window::default(),
    )
}

#[test]
fn text_begins_with_the_model_s_error() {
    let vms = [tried("default/pg"), tried("default/web")];
    let text = Report::of(&vms).text();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("Model's error: unit-hours "), "{text}");
    assert!(
        lines[1].ends_with(" questions to the candidate: no fault."),
        "{text}"
    );
    assert!(lines[2].starts_with("VM "), "{text}");
    assert_eq!(lines.len(), 3 + 6);
    assert!(lines[8].starts_with("all "), "{text}");
}

#[test]
fn page_has_no_script_and_its_style_has_the_hash_of_its_policy() {
    let vms = [tried("default/<script>alert(1)</script>")];
    let title = Title {
        policy: "a\"b'<i>.lua",
        digest: "5be1a7c0",
    };
    let html = page(title, &Report::of(&vms), &vms);
    assert!(!html.contains("<script") && !html.contains("<i>"), "{html}");
    assert!(!html.contains(" style=") && !html.contains("http://") && !html.contains("https://"));
    let style = html
        .split_once("<style>")
        .and_then(|(_, rest)| rest.split_once("</style>"));
    let (style, _) = style.expect("a style sheet");
    let hash = BASE64_STANDARD.encode(Sha256::digest(style.as_bytes()));
    assert!(html.contains(&format!("style-src 'sha256-{hash}'")));
    assert!(
        html.contains("<svg role=\"img\" aria-label=\"Need and sizes of default/&lt;script&gt;")
    );
    assert_eq!(html.matches("<figure ").count(), 1);
}

#[test]
fn page_of_many_vms_has_fifty_pictures() {
    let vms: Vec<Tried> = (0..60)
        .map(|number| tried(&format!("default/vm{number}")))
        .collect();
    let title = Title {
        policy: "a.lua",
        digest: "5be1a7c0",
    };
    let html = page(title, &Report::of(&vms), &vms);
    assert_eq!(html.matches("<figure ").count(), 50);
    assert!(html.contains("10 more VMs are in the table only."));
}
