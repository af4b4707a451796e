//! Steps of a benchmark: sizes of the guest before and after.

use clap::ValueEnum;

/// CPUs of the "+N" step.
const MANY: u32 = 3;

/// A pair of steps, there and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Which {
    /// One CPU more and less
    Cpu,
    /// Several CPUs more and less
    Cpus,
    /// 1 GiB more and less
    Memory,
}

/// A step: CPUs and slots before and after.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) from: (u32, u32),
    pub(crate) to: (u32, u32),
}

pub(crate) static STEPS: [(Which, (Step, Step)); 3] = [
    (Which::Cpu, pair(("cpu_plus_1", "cpu_minus_1"), (2, 1))),
    (
        Which::Cpus,
        pair(("cpu_plus_n", "cpu_minus_n"), (1 + MANY, 1)),
    ),
    (
        Which::Memory,
        pair(("mem_plus_1gib", "mem_minus_1gib"), (1, 2)),
    ),
];

/// From the smallest size to `to`, and back.
const fn pair(names: (&'static str, &'static str), to: (u32, u32)) -> (Step, Step) {
    let from = (1, 1);
    let up = Step {
        name: names.0,
        from,
        to,
    };
    let down = Step {
        name: names.1,
        from: to,
        to: from,
    };
    (up, down)
}
