//! A journal of a guest that was never there, for pictures.

use std::time::SystemTime;

use bellows_tests::site::Site;
use protocol::journal::{Block, Milli, Record, Sampled, Size, Step, SystemSample, decode, encode};
use serde_json::json;

/// A checkpoint of `default/pg` with number [`VM`].
const CHECKPOINT: &[u8] = include_bytes!("../../../protocol/testdata/journal/checkpoint.bj");
const VM: u32 = 17;
const SECOND: u64 = 1_000_000;
/// Seconds that the journal covers.
const LENGTH: u64 = 3_600;
/// Compute unit: CPU in thousandths, and memory.
const UNIT: (u32, u64) = (250, 1 << 30);

/// Compute units that the load calls for at a part of the time, 0 to 1.
fn load(part: f64) -> f64 {
    let wave = (part * std::f64::consts::TAU * 2.5).sin();
    let peak = if (0.55..0.75).contains(&part) {
        1.2
    } else {
        0.0
    };
    1.4 + 0.5 * wave + peak
}

/// Writes an hour of a VM's past into the journal of a site. The writer there begins with number 1.
pub(crate) fn write(site: &Site) {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let wall = u64::try_from(now.as_micros()).unwrap() - LENGTH * SECOND;
    let folder = site.state_dir().join("journal/agent");
    std::fs::create_dir_all(&folder).unwrap();
    let mut lines = String::new();
    for record in records(wall) {
        lines.push_str(&encode(&record));
    }
    std::fs::write(folder.join("0000000000.bj"), lines).unwrap();
}

fn record(value: serde_json::Value) -> Record {
    serde_json::from_value(value).unwrap()
}

fn records(wall: u64) -> Vec<Record> {
    let mut records = vec![record(
        json!({"k": "H", "build": "0.1.0", "cu": UNIT, "node": "n",
        "part": "agent", "run": wall, "seq": 1, "t": 0, "v": 1, "wall": wall}),
    )];
    let Ok(Record::Checkpoint(mut checkpoint)) = decode(CHECKPOINT) else {
        panic!("no checkpoint");
    };
    checkpoint.t = 0;
    checkpoint.plugin.permit = Some(Size(500, 2 << 30));
    records.push(Record::Checkpoint(checkpoint));
    let mut units = 2_u32;
    for second in (0..LENGTH).step_by(5) {
        let part = second as f64 / LENGTH as f64;
        let need = load(part);
        let t = (second + 1) * SECOND;
        let sample = SystemSample {
            load1: need * 0.25 * 0.85,
            load5: need * 0.25 * 0.85,
            usage: need * 0.78 * f64::from(1 << 30),
            cached: 0.0,
            estimate: None,
            pressure: None,
        };
        let block = Block(vec![(t, Step::System(sample))]);
        records.push(Record::Sampled(Sampled { vm: VM, block }));
        let goal = (1..=4).find(|goal| f64::from(*goal) >= need).unwrap_or(4);
        if goal == units && second % 60 != 0 {
            continue;
        }
        let votes = json!({"cpu": Milli::of(need * 0.85), "memory": Milli::of(need)});
        let mut decision = json!({"k": "D", "cu": units, "r": "memory", "rev": second, "t": t,
            "vm": VM, "votes": votes, "want": goal});
        if goal != units {
            decision["to"] = json!(goal);
        }
        records.push(record(decision));
        let size = (goal * UNIT.0, u64::from(goal) * UNIT.1);
        records.push(record(
            json!({"k": "O", "end": "done", "got": size, "id": second,
            "ms": {"permit": 3}, "rev": second, "t": t + 3_000, "vm": VM, "what": "permit"}),
        ));
        units = goal;
    }
    records
}
