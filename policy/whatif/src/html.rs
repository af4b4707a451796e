//! The report as one page: no script, nothing fetched. Its policy for contents names the style
//! sheet by its hash.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest as _, Sha256};

use crate::chart::svg;
use crate::report::{Report, VmReport};
use crate::text::TITLES;
use crate::tried::Tried;

/// Most VMs with a picture: those that the candidate changes most.
const MAX_PICTURES: usize = 50;

const STYLE: &str = include_str!("report.css");

/// What a page says about the policy.
#[derive(Debug, Clone, Copy)]
pub struct Title<'a> {
    /// Name or file of the policy.
    pub policy: &'a str,
    /// Its digest, in short.
    pub digest: &'a str,
}

/// Text with no mark-up in it.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c => escaped.push(c),
        }
    }
    escaped
}

/// The report as a page, with pictures of the VMs that change most.
#[must_use]
pub fn page(title: Title<'_>, report: &Report, vms: &[Tried]) -> String {
    let hash = BASE64_STANDARD.encode(Sha256::digest(STYLE.as_bytes()));
    let heading = format!(
        "What if policy {} ({}) had decided?",
        escaped(title.policy),
        escaped(title.digest)
    );
    let class = if report.error.is_judged() {
        "judged"
    } else {
        "not"
    };
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{hash}'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{heading}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{heading}</h1>\n\
         <p class=\"{class}\">{}</p>\n<p>{}</p>\n<h2>Figures</h2>\n",
        escaped(&report.first_line()),
        escaped(&report.questions_line())
    );
    page += &table(report);
    page += "<h2>Sizes</h2>\n<p>Compute units over time, UTC. Each picture shows the need \
             <span class=\"key need\">dotted</span>, the size with what decided in truth \
             <span class=\"key truth\">dashed</span> and with the candidate \
             <span class=\"key candidate\">solid</span>.</p>\n";
    let mut shown: Vec<&Tried> = vms.iter().collect();
    let change = |vm: &Tried| (vm.candidate.unit_hours - vm.modelled.unit_hours).abs();
    shown.sort_by(|one, other| change(other).total_cmp(&change(one)));
    for vm in shown.iter().take(MAX_PICTURES) {
        let name = escaped(&vm.name);
        let label = format!("Need and sizes of {name} over time");
        page += &format!(
            "<figure tabindex=\"0\">\n<figcaption>{name}: {:.2} unit-hours in truth, {:.2} with the candidate</figcaption>\n{}\n</figure>\n",
            vm.modelled.unit_hours,
            vm.candidate.unit_hours,
            svg(&vm.curves, &label)
        );
    }
    let rest = shown.len().saturating_sub(MAX_PICTURES);
    if rest > 0 {
        page += &format!("<p>{rest} more VMs are in the table only.</p>\n");
    }
    page + "</main>\n</body>\n</html>\n"
}

fn table(report: &Report) -> String {
    let mut table = String::from(
        "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Figures of each VM\">\n<table>\n<thead><tr><th scope=\"col\">VM</th><th scope=\"col\">decides</th>",
    );
    for title in TITLES {
        table += &format!("<th scope=\"col\">{title}</th>");
    }
    table += "</tr></thead>\n<tbody>\n";
    table += &rows("all", &report.total);
    for (name, vm) in &report.vms {
        table += &rows(name, vm);
    }
    table + "</tbody>\n</table>\n</div>\n"
}

fn rows(name: &str, vm: &VmReport) -> String {
    let mut rows = String::new();
    for (who, cells) in vm.rows() {
        let cells = cells.map(|cell| format!("<td>{cell}</td>")).concat();
        rows += &format!(
            "<tr><th scope=\"row\">{}</th><td class=\"who\">{who}</td>{cells}</tr>\n",
            escaped(name)
        );
    }
    rows
}
