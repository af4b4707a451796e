//! One VM's history beside what its decider and a candidate make of it in the model.

use agent::core::units::units_in;
use protocol::time::Timestamp;
use protocol::units::Resources;

use crate::adviser::{Adviser, Asking, Candidate, Questions, Subject};
use crate::columns::{Basis, Columns, Need, Window};
use crate::history::{History, Stretch};
use crate::trace::{Steps, Trace};
use crate::world::{World, core_of};

/// Most points of a curve of needs.
const POINTS: usize = 720;

/// Sizes and need of a VM over calendar time (microseconds since 1970), compute units. Sizes hold
/// until the next point.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curves {
    /// Size that the record shows.
    pub recorded: Vec<(i64, f64)>,
    /// Size that what decided in truth has in the model.
    pub modelled: Vec<(i64, f64)>,
    /// Size that the candidate has in the model.
    pub candidate: Vec<(i64, f64)>,
    /// Largest need up to the next point.
    pub need: Vec<(i64, f64)>,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Tried {
    /// `namespace/name` of the VM.
    pub name: String,
    /// What the record shows.
    pub recorded: Columns,
    /// What decided in truth, in the model.
    pub modelled: Columns,
    /// The candidate, in the model.
    pub candidate: Columns,
    /// Questions to the candidate.
    pub questions: Questions,
    /// Gaps between the records of the time that counts.
    pub gaps: u64,
    /// Sizes over time.
    pub curves: Curves,
}

impl Tried {
    /// Runs the model twice: with what decided in truth, and with the candidate. Numbers of VMs
    /// hold within one adviser.
    #[must_use]
    pub fn new(
        history: &History,
        vm: u32,
        candidate: &Candidate,
        adviser: &mut dyn Adviser,
        window: Window,
    ) -> Self {
        let mut tried = Self {
            name: history.name.clone(),
            recorded: Columns::default(),
            modelled: Columns::default(),
            candidate: Columns::default(),
            questions: Questions::default(),
            gaps: 0,
            curves: Curves::default(),
        };
        let mut parts = 0_u64;
        for stretch in &history.stretches {
            let from = Timestamp(stretch.checkpoint.t);
            let (from, to) = window.within(stretch.wall, from, stretch.end);
            if from >= to {
                continue;
            }
            parts += 1;
            let modelled = in_truth(history, stretch);
            let subject = Subject {
                vm,
                labels: &stretch.labels,
                wall: stretch.wall,
                vms: history.vms,
                counted: (from, to),
            };
            let core = core_of(stretch, true);
            let began = Timestamp(stretch.checkpoint.t);
            let asking = Asking::new(candidate, adviser, subject, (began, &core));
            let mut of_candidate = Trace::default();
            let world = World::new(stretch, history.times, Some(asking), &mut of_candidate);
            if let Some(asking) = world.run(stretch) {
                tried.questions.add(&asking.questions());
            }
            tried.add(history, stretch, [&modelled, &of_candidate], (from, to));
        }
        tried.gaps = parts.saturating_sub(1);
        tried
    }

    fn add(
        &mut self,
        history: &History,
        stretch: &Stretch,
        [modelled, candidate]: [&Trace; 2],
        (from, to): (Timestamp, Timestamp),
    ) {
        let unit: Resources = stretch.settings.unit.into();
        let of = |trace: &Trace| {
            let basis = Basis {
                trace,
                needs: &stretch.needs,
                lead: history.times.up,
                unit,
            };
            Columns::of(&basis, (from, to))
        };
        self.recorded.add(&of(&stretch.trace));
        self.modelled.add(&of(modelled));
        self.candidate.add(&of(candidate));
        let calendar =
            |at: Timestamp| i64::try_from(stretch.wall.saturating_add(at.0)).unwrap_or(i64::MAX);
        let curve = |steps: &Steps<Resources>| {
            let before = steps.iter().rfind(|(at, _)| *at <= from);
            let first = before.map(|(_, size)| (from, *size));
            let later = steps.iter().filter(|(at, _)| (from < *at) && (*at < to));
            let last = steps.iter().rfind(|(at, _)| *at < to);
            let last = last.map(|(_, size)| (to, *size));
            let all = first.into_iter().chain(later.copied()).chain(last);
            all.map(|(at, size)| (calendar(at), units_in(size, unit)))
                .collect::<Vec<_>>()
        };
        let curves = &mut self.curves;
        curves.recorded.extend(curve(&stretch.trace.in_use));
        curves.modelled.extend(curve(&modelled.in_use));
        curves.candidate.extend(curve(&candidate.in_use));
        let needs: Vec<&Need> = stretch
            .needs
            .iter()
            .filter(|need| (from..to).contains(&need.at))
            .collect();
        for chunk in needs.chunks(needs.len().div_ceil(POINTS).max(1)) {
            let most = chunk
                .iter()
                .map(|need| need.units(unit))
                .fold(0.0, f64::max);
            curves.need.push((calendar(chunk[0].at), most));
        }
    }
}

/// What decided in truth, in the model.
pub(crate) fn in_truth(history: &History, stretch: &Stretch) -> Trace {
    let mut trace = Trace::default();
    World::new(stretch, history.times, None, &mut trace).run(stretch);
    trace
}
