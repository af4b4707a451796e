//! One VM: its picture, why it has its size, what was decided and by whom.

use std::time::{Duration, SystemTime};

use askama::Template;

use super::overview::ResizeRow;
use crate::commands::people::{self, Done};
use crate::context::Context;
use crate::decision::Decision;
use crate::fail::Outcome;
use crate::past::{Entry, Past, Range, past};
use crate::view::units::{cores, memory};
use crate::view::vm::VmView;
use crate::view::why;
use crate::web::attention::{Item, of_vm};
use crate::web::frame::Frame;
use crate::web::paths::path_of;
use crate::web::picture::{self, Measure, Picture, draw};
use crate::web::snapshot::{Snapshot, VmSettings};

/// Most decisions on the page.
const DECISIONS: usize = 20;
/// Most actions of people on the page.
const ACTIONS: usize = 20;
/// Most resizes on the page.
const RESIZES: usize = 5;
/// Shortest time that the pictures show, seconds.
const SHORTEST_S: u32 = 60;
/// Most bytes of journal files that are read for a page.
const JOURNAL_BYTES: u64 = 64 << 20;

/// Time that the pictures show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// Value in the query.
    pub(super) value: &'static str,
    pub(super) label: &'static str,
    pub(crate) seconds: u32,
}

pub(crate) const WINDOWS: [Window; 4] = [
    Window {
        value: "15m",
        label: "15 minutes",
        seconds: 900,
    },
    Window {
        value: "1h",
        label: "1 hour",
        seconds: 3_600,
    },
    Window {
        value: "6h",
        label: "6 hours",
        seconds: 21_600,
    },
    Window {
        value: "24h",
        label: "24 hours",
        seconds: 86_400,
    },
];

impl Window {
    /// The window of a query. For any other value the VM's age decides: a young VM fills the
    /// picture.
    pub(crate) fn of(value: &str, age_s: Option<u64>) -> Self {
        let known = WINDOWS.into_iter().find(|window| window.value == value);
        known.unwrap_or_else(|| Self::life(age_s).unwrap_or(WINDOWS[1]))
    }

    /// The time since a VM was made. `None` if that is longer than an hour.
    fn life(age_s: Option<u64>) -> Option<Self> {
        let seconds = u32::try_from(age_s?).ok()?;
        (seconds < WINDOWS[1].seconds).then(|| Self {
            value: "life",
            label: "since it was made",
            seconds: seconds.max(SHORTEST_S),
        })
    }

    /// The windows of a VM's page.
    fn choices(age_s: Option<u64>) -> Vec<Self> {
        Self::life(age_s).into_iter().chain(WINDOWS).collect()
    }
}

/// What the journals tell about a VM.
#[derive(Debug, Default)]
pub(crate) struct VmJournal {
    pub(crate) past: Past,
    /// Whether the journals are on the nodes of a cluster, and were not read.
    pub(crate) is_elsewhere: bool,
    pub(crate) actions: Vec<Done>,
}

impl VmJournal {
    pub(super) fn read(context: &Context, key: &str, window: Window) -> Outcome<Self> {
        if context.asks_cluster() {
            return Ok(Self {
                is_elsewhere: true,
                ..Self::default()
            });
        }
        let begin = Duration::from_secs(window.seconds.into());
        let since = SystemTime::now().checked_sub(begin);
        let since = since.unwrap_or(SystemTime::UNIX_EPOCH);
        let past = past(context, key, Range::Since(since, JOURNAL_BYTES))?;
        let mut objects = past.policies.names();
        objects.insert(key.to_owned());
        let actions = people::on(context, &objects)?;
        Ok(Self {
            past,
            actions,
            is_elsewhere: false,
        })
    }
}

/// A signal with what it asks for.
#[derive(Debug)]
struct Vote {
    name: &'static str,
    units: String,
    /// Whether the goal follows it.
    is_deciding: bool,
}

#[derive(Debug, Template)]
#[template(path = "vm.html", whitespace = "minimize")]
pub(crate) struct VmPage {
    pub(super) frame: Frame,
    namespace: String,
    name: String,
    phase: String,
    attention: Option<Item>,
    /// Size, wanted size and bounds in one sentence.
    size: String,
    /// Why it has its size.
    why: Vec<String>,
    votes: Vec<Vote>,
    pictures: Vec<Picture>,
    windows: Vec<Window>,
    window: Window,
    is_cut: bool,
    is_elsewhere: bool,
    /// Why pictures and decisions are missing.
    problem: Option<String>,
    facts: Vec<(&'static str, String)>,
    bounds_href: String,
    mode_href: String,
    decisions: Vec<String>,
    actions: Vec<String>,
    resizes: Vec<ResizeRow>,
}

fn votes(decision: &Decision) -> Vec<Vote> {
    let votes = &decision.votes;
    let all = [
        ("cpu", "load", votes.cpu),
        ("memory", "memory in use", votes.memory),
        (
            "working_set",
            "working set of the file cache",
            votes.working_set,
        ),
        (
            "monitor_estimate",
            "monitor's estimate",
            votes.monitor_estimate,
        ),
        ("memory_pressure", "memory pressure", votes.memory_pressure),
        ("policy", "its policy", votes.policy),
    ];
    let vote = |(reason, name, vote): (&str, &'static str, Option<f64>)| {
        Some(Vote {
            name,
            units: format!("{:.2}", vote?),
            is_deciding: decision.reason == reason,
        })
    };
    all.into_iter().filter_map(vote).collect()
}

/// Decisions that differ from the one before, newest first.
fn changed<'a>(entries: &'a [Entry]) -> impl Iterator<Item = &'a Entry> {
    let same = |a: &Entry, b: &Entry| {
        a.target() == b.target()
            && a.had() == b.had()
            && a.decision.r == b.decision.r
            && a.decision.by == b.decision.by
            && a.outcome() == b.outcome()
    };
    let before = std::iter::once(None).chain(entries.iter().map(Some));
    let pairs = entries.iter().zip(before).collect::<Vec<_>>();
    let differs = move |(entry, before): &(&'a Entry, Option<&'a Entry>)| {
        before.is_none_or(|before| !same(entry, before))
    };
    pairs
        .into_iter()
        .rev()
        .filter(differs)
        .map(|(entry, _)| entry)
}

/// The newest changes as sentences.
fn decisions(entries: &[Entry], key: &str) -> Vec<String> {
    let newest = changed(entries).take(DECISIONS);
    newest.map(|entry| entry.sentence(key)).collect()
}

fn facts(vm: &VmView, settings: &VmSettings) -> Vec<(&'static str, String)> {
    let whose = if settings.has_own_bounds {
        "set for this VM"
    } else {
        "of its spec"
    };
    let mut facts = vec![
        (
            "Bounds",
            format!(
                "{} to {} CPU, {} to {} ({whose})",
                cores(vm.cpu_milli.min),
                cores(vm.cpu_milli.max),
                memory(vm.memory_bytes.min),
                memory(vm.memory_bytes.max),
            ),
        ),
        (
            "Mode",
            settings
                .mode
                .clone()
                .unwrap_or_else(|| "that of its namespace or node".into()),
        ),
    ];
    let known = vm
        .decision
        .as_ref()
        .and_then(|one| one.policy.as_ref()?.name.clone());
    let policy = settings.policy.clone().or(known);
    let optional = [
        ("Policy", policy),
        ("Set", vm.set.as_ref().map(|set| set.name.clone())),
        ("Node", vm.node.clone()),
        ("Pod", vm.pod.clone()),
        ("Address", vm.address.clone()),
        ("Age", vm.age_s.map(crate::output::age)),
        ("Restarts", Some(vm.restarts.to_string())),
    ];
    facts.extend(
        optional
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    facts
}

impl VmPage {
    pub(crate) fn new(
        frame: Frame,
        state: &Snapshot,
        vm: &VmView,
        told: Outcome<VmJournal>,
        window: Window,
    ) -> Self {
        let (told, problem) = match told {
            Ok(told) => (told, None),
            Err(fail) => (VmJournal::default(), Some(fail.what().to_owned())),
        };
        let key = vm.key();
        let mut lines = why::lines(vm).into_iter();
        let size = lines.next().unwrap_or_default();
        let span = picture::Window::before(state.at, window.seconds);
        let pictures = [Measure::Memory, Measure::Cpu];
        let path = |order: &str| path_of(&["vms", &vm.namespace, &vm.name, order]);
        let own = state.resizes.iter().filter(|resize| resize.vm == key);
        Self {
            namespace: vm.namespace.clone(),
            name: vm.name.clone(),
            phase: vm.phase.clone(),
            attention: of_vm(vm, state),
            size,
            why: lines.chain(why::refusal(&state.refused[&key])).collect(),
            votes: vm.decision.as_ref().map(votes).unwrap_or_default(),
            pictures: pictures.map(|one| draw(one, vm, &told.past, span)).into(),
            windows: Window::choices(vm.age_s),
            window,
            is_cut: told.past.is_cut,
            is_elsewhere: told.is_elsewhere,
            problem,
            facts: facts(vm, &state.settings(&key)),
            bounds_href: path("bounds"),
            mode_href: path("mode"),
            decisions: decisions(&told.past.entries, &key),
            actions: told
                .actions
                .iter()
                .rev()
                .take(ACTIONS)
                .map(Done::sentence)
                .collect(),
            resizes: own
                .take(RESIZES)
                .map(|one| ResizeRow::new(one, state))
                .collect(),
            frame,
        }
    }
}
