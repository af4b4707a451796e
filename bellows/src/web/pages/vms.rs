//! The list of VMs, a hundred a page.

use askama::Template;
use serde::Deserialize;

use crate::view::units::{cores, memory};
use crate::view::vm::{Sizes, VmView};
use crate::web::attention::{Level, of_vm};
use crate::web::frame::Frame;
use crate::web::paths::path_of;
use crate::web::snapshot::Snapshot;

/// VMs on a page.
const PER_PAGE: usize = 100;
/// Most characters of a reason in the list.
const REASON_CHARS: usize = 80;

/// Which VMs, and which page of them.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct VmsQuery {
    /// Part of the name or namespace.
    pub(super) q: String,
    /// `attention`, `resizing`, `stopped` or all.
    pub(super) show: String,
    /// From 1. What is no number is 1.
    pub(super) page: String,
    /// Present on the page for a search, which does not refresh itself.
    pub(super) search: Option<String>,
}

/// A VM in a list.
#[derive(Debug)]
pub(super) struct VmRow {
    pub(super) key: String,
    pub(super) href: String,
    /// Word and class of what needs attention.
    pub(super) mark: Option<Level>,
    pub(super) phase: String,
    pub(super) cpu: Bar,
    pub(super) memory: Bar,
    pub(super) load: String,
    pub(super) reason: String,
}

/// A size within its bounds: as text, and as widths in hundredths.
#[derive(Debug, Default)]
pub(super) struct Bar {
    /// Such as `1Gi of 8Gi`, or `1Gi to 4Gi of 8Gi` while they differ.
    pub(super) text: String,
    pub(super) now: u64,
    pub(super) want: u64,
}

/// Hundredths of a whole.
pub(super) fn percent(part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    let share = u128::from(part) * 100 / u128::from(whole);
    u64::try_from(share).unwrap_or(100).min(100)
}

impl Bar {
    fn new<T: Copy + PartialEq + Into<u64>>(sizes: &Sizes<T>, show: impl Fn(T) -> String) -> Self {
        let now = sizes.now.map_or_else(|| "?".into(), &show);
        let max = show(sizes.max);
        let text = if sizes.now == Some(sizes.want) {
            format!("{now} of {max}")
        } else {
            format!("{now} to {} of {max}", show(sizes.want))
        };
        Self {
            text,
            now: percent(sizes.now.map_or(0, Into::into), sizes.max.into()),
            want: percent(sizes.want.into(), sizes.max.into()),
        }
    }
}

impl VmRow {
    pub(super) fn new(vm: &VmView, state: &Snapshot) -> Self {
        let load = vm.decision.as_ref().and_then(|decision| decision.load1);
        let reason = vm.reason();
        let mut shown: String = reason.chars().take(REASON_CHARS).collect();
        if shown.len() < reason.len() {
            shown.push('…');
        }
        Self {
            key: vm.key(),
            href: path_of(&["vms", &vm.namespace, &vm.name]),
            mark: of_vm(vm, state).map(|item| item.level),
            phase: if vm.phase.is_empty() {
                "New".to_owned()
            } else {
                vm.phase.clone()
            },
            cpu: Bar::new(&vm.cpu_milli, cores),
            memory: Bar::new(&vm.memory_bytes, memory),
            load: load.map_or_else(|| "–".into(), |load| format!("{load:.2}")),
            reason: shown,
        }
    }
}

/// One page of a list of VMs.
#[derive(Debug)]
pub(super) struct VmList {
    pub(super) rows: Vec<VmRow>,
    pub(super) total: usize,
    pub(super) page: usize,
    pub(super) pages: usize,
    /// Path of the list and its query without a page.
    pub(super) link: String,
}

impl VmList {
    pub(super) fn new<'a>(
        vms: impl Iterator<Item = &'a VmView>,
        state: &Snapshot,
        (link, page): (String, &str),
    ) -> Self {
        let all: Vec<&VmView> = vms.collect();
        let pages = all.len().div_ceil(PER_PAGE).max(1);
        let page = page.parse().unwrap_or(1).clamp(1, pages);
        let shown = all.iter().skip((page - 1) * PER_PAGE).take(PER_PAGE);
        Self {
            rows: shown.map(|vm| VmRow::new(vm, state)).collect(),
            total: all.len(),
            page,
            pages,
            link,
        }
    }

    /// Such as `VMs 101 to 200 of 1,000`.
    pub(super) fn range(&self) -> String {
        let first = (self.page - 1) * PER_PAGE;
        match self.total {
            0 => "No VMs".to_owned(),
            1 => "One VM".to_owned(),
            total => format!(
                "VMs {} to {} of {total}",
                first + 1,
                first + self.rows.len()
            ),
        }
    }
}

/// A choice of the filter.
#[derive(Debug)]
struct Choice {
    value: &'static str,
    label: &'static str,
    is_chosen: bool,
}

const CHOICES: [(&str, &str); 4] = [
    ("", "all"),
    ("attention", "those that need attention"),
    ("resizing", "those being resized"),
    ("stopped", "those that do not run"),
];

#[derive(Debug, Template)]
#[template(path = "vms.html", whitespace = "minimize")]
pub(crate) struct VmsPage {
    pub(super) frame: Frame,
    list: VmList,
    q: String,
    choices: Vec<Choice>,
    /// What the filter says. Empty without one.
    filter: String,
    /// Whether the form of the filter is shown. That page does not refresh itself.
    is_searching: bool,
    search_href: String,
}

impl VmsPage {
    pub(crate) fn new(frame: Frame, state: &Snapshot, query: &VmsQuery) -> Self {
        let is_wanted = |vm: &&VmView| {
            let shown = match &*query.show {
                "attention" => of_vm(vm, state).is_some_and(|item| item.level < Level::Note),
                "resizing" => vm.phase == "Scaling",
                "stopped" => !vm.alive,
                _ => true,
            };
            shown && (query.q.is_empty() || vm.key().contains(&query.q))
        };
        let mut link = form_urlencoded::Serializer::new(String::new());
        link.append_pair("q", &query.q)
            .append_pair("show", &query.show);
        let link = format!("/vms?{}", link.finish());
        let mut filter: Vec<String> = Vec::new();
        if !query.q.is_empty() {
            filter.push(format!("names with {:?}", query.q));
        }
        let chosen = CHOICES.iter().find(|(value, _)| *value == query.show);
        if let Some((_, label)) = chosen.filter(|(value, _)| !value.is_empty()) {
            filter.push((*label).to_owned());
        }
        let choices = CHOICES.map(|(value, label)| Choice {
            value,
            label,
            is_chosen: value == query.show,
        });
        let vms = state.vms.iter().filter(is_wanted);
        Self {
            search_href: format!("{link}&search=1"),
            list: VmList::new(vms, state, (link, &query.page)),
            frame,
            q: query.q.clone(),
            choices: choices.into(),
            filter: filter.join(", "),
            is_searching: query.search.is_some(),
        }
    }
}
