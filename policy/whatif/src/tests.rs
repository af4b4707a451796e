//! Hand-made histories, and journals that the model itself writes.

mod columns;
mod model;
mod page;

use std::collections::BTreeMap;

use agent::Observer;
use agent::core::journal::{Output, Recorder, settings};
use agent::core::vm::{CpuInfo, MemInfo, VmConfig};
use agent::core::{Core, CoreConfig, Event, ScalingConfig, SystemMetrics, Timers, VmInfo};
use policy_contract::{Answer, Fault, Input, Spec};
use protocol::journal::{
    Checkpoint, CoreSettings, FORMAT, Head, NodeState, Record, decode, encode,
};
use protocol::policy::Limits;
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, MilliCpu, Resources};

use crate::columns::Need;
use crate::history::{Happening, Stretch};
use crate::{Adviser, Candidate, History, Reader};

pub(super) const UNIT: Resources = Resources::new(1000, 4 << 30);
pub(super) const BEGIN: Timestamp = Timestamp(1_000_000_000);
/// Calendar time of the clock's zero, microseconds since 1970.
pub(super) const WALL: u64 = 1_700_000_000_000_000;

pub(super) fn at(seconds: u64) -> Timestamp {
    BEGIN + Span::from_secs(seconds)
}

/// A VM of one to eight units, at `units`.
fn info(units: u32) -> VmInfo {
    VmInfo {
        name: "pg".into(),
        namespace: "default".into(),
        cpu: CpuInfo {
            min: MilliCpu(1000),
            max: MilliCpu(8000),
            r#use: MilliCpu(1000 * units),
        },
        mem: MemInfo {
            min: 1,
            max: 8,
            r#use: units,
            slot_size: Bytes(4 << 30),
        },
        config: VmConfig {
            auto_migration_enabled: false,
            always_migrate: false,
            scaling_enabled: true,
            overrides: None,
            scaling: ScalingConfig::default(),
            own_mode: None,
        },
        current_revision: None,
        target_revision: None,
        actual: None,
        last_revision: 0,
        version: None,
    }
}

fn config() -> CoreConfig {
    CoreConfig {
        compute_unit: UNIT,
        default_scaling: ScalingConfig::default(),
        timers: Timers::default(),
        system_max_age: Some(Span::from_secs(17)),
        lfc_max_age: None,
    }
}

pub(super) fn metrics(load: f64, used_units: f64) -> Event {
    Event::SystemMetrics(SystemMetrics {
        load1: load,
        load5: load,
        memory_usage_bytes: used_units * UNIT.mem.0 as f64,
        ..SystemMetrics::default()
    })
}

/// A stretch of a VM at `units` whose guest needs `need(second)` (load, memory in units), sampled
/// each 5 s. Its monitor is linked.
pub(super) fn stretch(units: u32, seconds: u64, need: impl Fn(u64) -> (f64, f64)) -> Stretch {
    let config = config();
    let core = Core::new(config, info(units));
    let checkpoint = core.checkpoint(1, BEGIN);
    let mut stretch = Stretch::new(&settings(&config), &checkpoint, WALL, None);
    stretch.happenings.push((at(1), Happening::Linked(true)));
    for second in (2..seconds).step_by(5) {
        let (load, used) = need(second);
        let event = metrics(load, used);
        stretch.needs.extend(Need::of(at(second), &event));
        let happening = Happening::Metrics(event);
        stretch.happenings.push((at(second), happening));
    }
    stretch.end = at(seconds);
    stretch
}

/// Shows each step to two observers.
#[derive(Debug)]
pub(super) struct Both<'a>(
    pub(super) &'a mut dyn Observer,
    pub(super) &'a mut dyn Observer,
);

impl Observer for Both<'_> {
    fn begins(&mut self, settings: &CoreSettings, checkpoint: &Checkpoint) {
        self.0.begins(settings, checkpoint);
        self.1.begins(settings, checkpoint);
    }

    fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        self.0.event(now, event, core);
        self.1.event(now, event, core);
    }

    fn output(&mut self, now: Timestamp, output: &Output, core: &Core) {
        self.0.output(now, output, core);
        self.1.output(now, output, core);
    }
}

/// Writes the journal of what it sees.
#[derive(Debug)]
pub(super) struct Writer {
    recorder: Recorder,
    records: Vec<Record>,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self {
            recorder: Recorder::new(1, UNIT),
            records: Vec::new(),
        }
    }

    /// The VM's history, read from the journal's lines.
    pub(super) fn history(mut self) -> History {
        self.recorder.flush(&mut self.records);
        let mut reader = Reader::default();
        for record in &self.records {
            reader.take(decode(encode(record).as_bytes()).expect("a line"));
        }
        reader.finish().pop().expect("a VM")
    }
}

impl Observer for Writer {
    fn begins(&mut self, settings: &CoreSettings, checkpoint: &Checkpoint) {
        let t = checkpoint.t;
        self.records.push(Record::Head(Head {
            build: "test".into(),
            cu: UNIT.into(),
            node: "node".into(),
            part: "agent".into(),
            prev: None,
            run: 1,
            seq: 1,
            t,
            v: FORMAT,
            wall: WALL,
        }));
        self.records.push(Record::Node(NodeState {
            core: Some(*settings),
            engine: None,
            scheduler: None,
            t,
        }));
        let core = Core::restore(settings, checkpoint);
        let next = Timestamp(t + 1);
        self.recorder.checkpoint(next, &core, &mut self.records);
    }

    fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        self.recorder
            .event(now, event, core, None, &mut self.records);
    }

    fn output(&mut self, now: Timestamp, output: &Output, _: &Core) {
        self.recorder.output(now, output, &mut self.records);
    }
}

/// Gives the same answer to each question.
pub(super) struct Always(pub(super) Result<u32, Fault>);

impl Adviser for Always {
    fn forget(&mut self, _: u32) {}

    fn sample(&mut self, _: u32, _: f64, _: BTreeMap<String, f64>) {}

    fn ask(&mut self, _: u32, _: f64, _: &Input) -> Result<Answer, Fault> {
        let value = serde_json::json!({"cu": self.0?, "reason": "always"});
        Ok(Answer::read(&value).expect("an answer"))
    }
}

pub(super) fn candidate() -> Candidate {
    Candidate {
        spec: Spec::of_source("return function(i) return std.hold('x') end"),
        limits: Limits::default(),
    }
}

/// A history of these stretches.
pub(super) fn history(stretches: Vec<Stretch>) -> History {
    History {
        name: "default/pg".into(),
        stretches,
        vms: 1,
        times: Default::default(),
    }
}
