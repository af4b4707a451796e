//! What the agent does all day, alone and warm: one decision, the same with its journal, one
//! scraped page read.
//!
//! Prints a JSON object of nanoseconds each, medians over many rounds; `cargo xtask bench agent`
//! shows them beside what the running process does.

use std::hint::black_box;
use std::time::Instant;

use agent::core::config::{CoreConfig, ScalingConfig, Timers};
use agent::core::journal::{Output, Recorder};
use agent::core::metrics::SystemMetrics;
use agent::core::vm::VmInfo;
use agent::core::{Action, Core, Event};
use protocol::core::Core as _;
use protocol::exposition::Page;
use protocol::journal::{Record, encode};
use protocol::permit::PluginResponse;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;
use serde_json::json;

/// Rounds; their median is what is shown.
const ROUNDS: usize = 41;
/// Steps a round.
const STEPS: u32 = 5_000;
/// Between two scrapes.
const PERIOD: Span = Span::from_secs(5);
/// Samples on a page, about as many as the exporter of a small guest shows.
const PAGE_SAMPLES: usize = 120;
/// A page comes in pieces of at most this, bytes.
const PIECE: usize = 8 * 1024;

fn unit() -> Resources {
    Resources::new(250, 1 << 30)
}

/// A VM at its smallest size whose metrics only flicker.
struct Vm {
    core: Core,
    now: Timestamp,
    flicker: u32,
}

impl Vm {
    fn new() -> Self {
        let object = json!({
            "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
            "metadata": {
                "name": "vm", "namespace": "default",
                "labels": { "autoscaling.neon.tech/enabled": "true" },
            },
            "spec": {
                "guest": {
                    "cpus": { "min": "250m", "use": "250m", "max": 2 },
                    "memorySlotSize": "1Gi",
                    "memorySlots": { "min": 1, "use": 1, "max": 8 },
                },
                "schedulerName": "autoscale-scheduler",
            },
        });
        let object = serde_json::from_value(object).expect("a VM");
        let scaling = ScalingConfig::default();
        let info = VmInfo::from_object(&object, &scaling).expect("settings");
        let config = CoreConfig {
            compute_unit: unit(),
            default_scaling: scaling,
            timers: Timers::default(),
            system_max_age: Some(Span::from_secs(15)),
            lfc_max_age: None,
        };
        let mut vm = Self {
            core: Core::new(config, info),
            now: Timestamp(0),
            flicker: 0,
        };
        vm.core.handle(vm.now, Event::MonitorActive);
        (0..STEPS).for_each(|_| {
            vm.step(|_, _, _| {}, |_, _| {});
        });
        vm
    }

    /// The next sample, and the decision it leads to; a permit asked for is granted.
    fn step(
        &mut self,
        fed: impl FnOnce(Timestamp, &Event, &Core),
        decided: impl FnOnce(Timestamp, &Output),
    ) {
        self.now = self.now + PERIOD;
        self.flicker = (self.flicker + 1) % 7;
        let load = 0.03 + 0.01 * f64::from(self.flicker);
        let event = Event::SystemMetrics(SystemMetrics {
            load1: load,
            load5: load,
            memory_usage_bytes: 3e8,
            memory_cached_bytes: 1e8,
            ..SystemMetrics::default()
        });
        fed(self.now, &event, &self.core);
        self.core.handle(self.now, event);
        let output = Output::of(&mut self.core, self.now);
        decided(self.now, &output);
        for (id, action) in black_box(output).started {
            if let Action::Permit(request) = action {
                let granted = PluginResponse {
                    permit: request.target,
                    migrate: None,
                };
                self.now = self.now + Span(1);
                self.core
                    .handle(self.now, Event::PermitDone(id, Ok(granted)));
            }
        }
        while self.core.poll_observation().is_some() {}
    }
}

/// Median time of one step, nanoseconds.
fn time(mut step: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            (0..STEPS).for_each(|_| step());
            began.elapsed().as_secs_f64() * 1e9 / f64::from(STEPS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn decision() -> f64 {
    let mut vm = Vm::new();
    time(|| vm.step(|_, _, _| {}, |_, _| {}))
}

fn journaled() -> f64 {
    let mut vm = Vm::new();
    let mut recorder = Recorder::new(1, unit());
    let (mut before, mut after) = (Vec::new(), Vec::new());
    recorder.checkpoint(vm.now, &vm.core, &mut before);
    let write = |records: &mut Vec<Record>| {
        records.drain(..).for_each(|record| {
            black_box(encode(&record));
        });
    };
    time(|| {
        let recorder = std::cell::RefCell::new(&mut recorder);
        vm.step(
            |now, event, core| {
                recorder
                    .borrow_mut()
                    .event(now, event, core, None, &mut before)
            },
            |now, output| {
                recorder.borrow_mut().output(now, output, &mut after);
            },
        );
        write(&mut before);
        write(&mut after);
    })
}

fn scrape() -> f64 {
    let mut page = String::new();
    for n in 0..(PAGE_SAMPLES - 5) / 5 {
        page.push_str(&format!("# HELP host_disk_{n}_total Bytes of a device.\n"));
        page.push_str(&format!("# TYPE host_disk_{n}_total counter\n"));
        for device in ["vda", "vdb", "vdc", "vdd", "vde"] {
            page.push_str(&format!(
                "host_disk_{n}_total{{device=\"{device}\",collector=\"disk\",host=\"guest\"}} {}\n",
                n * 1_234_567
            ));
        }
    }
    let memory = ["total", "available", "cached"].map(|of| format!("host_memory_{of}_bytes"));
    for name in memory
        .iter()
        .map(String::as_str)
        .chain(["host_load1", "host_load5"])
    {
        page.push_str(&format!("# TYPE {name} gauge\n{name} 0.5\n"));
    }
    time(|| {
        let mut read = Page::system();
        page.as_bytes()
            .chunks(PIECE)
            .for_each(|piece| read.feed(piece));
        black_box(read.into_system().expect("all is there"));
    })
}

#[expect(clippy::print_stdout, reason = "the figures are what it is for")]
fn main() {
    println!(
        "{}",
        json!({
            "decision_ns": decision(),
            "decision_journaled_ns": journaled(),
            "scrape_parse_ns": scrape(),
        })
    );
}
