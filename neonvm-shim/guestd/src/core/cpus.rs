//! Which CPUs to switch: sets of CPU numbers as the kernel prints them, and the plan from what is
//! online to what is wanted.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Highest CPU number accepted: the largest `NR_CPUS` a stock x86 kernel is built with.
pub const MAX_CPU: u32 = 8191;

/// A set of CPU numbers. Text form: `"0-1,3-5, 9"`; blanks are tolerated, empty text is the empty
/// set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuSet(BTreeSet<u32>);

/// A text that is not a CPU list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a CPU list such as 0-1,3 with numbers up to {MAX_CPU}")]
pub struct CpuListError(pub String);

impl CpuSet {
    /// Number of CPUs in the set.
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it holds a CPU.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let bad = || CpuListError(text.chars().take(64).collect());
        let number = |part: &str| -> Result<u32, CpuListError> {
            part.trim()
                .parse()
                .ok()
                .filter(|cpu| *cpu <= MAX_CPU)
                .ok_or_else(bad)
        };
        let mut set = BTreeSet::new();
        for part in text
            .trim()
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(bad());
            }
            set.extend(first..=last);
        }
        Ok(Self(set))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for cpu in self.iter() {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => runs.push((cpu, cpu)),
            }
        }
        for (index, (first, last)) in runs.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

/// One write to `cpuN/online`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// Number of the CPU, the N of `cpuN`; never 0.
    pub cpu: u32,
    /// `1` or `0`.
    pub on: bool,
}

/// What to write, in order, to get from what is online to a target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Writes to `cpuN/online`, in order. Empty when the target is reached, or cannot come nearer.
    pub switches: Vec<Switch>,
    /// CPUs by which the target stays out of reach, in either direction: not enough present, or CPU
    /// 0 in the way.
    pub missing: u32,
}

/// Plans the way to `target` online CPUs: off from the highest down, on from the lowest up, CPU 0
/// never.
#[must_use]
pub fn plan(online: &CpuSet, present: &CpuSet, target: u32) -> Plan {
    let have = online.len();
    let (on, wanted) = (target > have, target.abs_diff(have));
    let take = usize::try_from(wanted).unwrap_or(usize::MAX);
    let switches: Vec<Switch> = if on {
        let off = present
            .iter()
            .filter(|cpu| *cpu != 0 && !online.contains(*cpu));
        off.take(take).map(|cpu| Switch { cpu, on }).collect()
    } else {
        let lit = online.iter().rev().filter(|cpu| *cpu != 0);
        lit.take(take).map(|cpu| Switch { cpu, on }).collect()
    };
    let missing = wanted - u32::try_from(switches.len()).unwrap_or(wanted);
    Plan { switches, missing }
}

/// Who decides how many CPUs are online.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuPolicy {
    /// Every present CPU, unless a target says less. The target is held: CPUs that appear later are
    /// switched on up to it.
    OnlineAll,
    /// Nothing but `PUT /cpu`, once per request.
    Managed,
}

/// The standing order for CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuOrder {
    /// Whether the daemon switches CPUs by itself.
    pub policy: CpuPolicy,
    /// The newest target, in CPUs.
    pub target: Option<u32>,
}

impl CpuOrder {
    /// The order at start. A kernel that was told `maxcpus=N` was told a target: it holds until a
    /// `PUT /cpu`.
    #[must_use]
    pub fn at_start(policy: CpuPolicy, kernel_cmdline: &str) -> Self {
        let maxcpus = kernel_cmdline
            .split_ascii_whitespace()
            .filter_map(|word| word.strip_prefix("maxcpus="))
            .filter_map(|value| value.parse::<u32>().ok())
            .next_back();
        Self {
            policy,
            target: maxcpus.map(|count| count.max(1)),
        }
    }

    /// How many CPUs the sweep shall see to; `None` if it shall not touch any.
    #[must_use]
    pub fn sweep_target(&self, present: &CpuSet) -> Option<u32> {
        match self.policy {
            CpuPolicy::Managed => None,
            CpuPolicy::OnlineAll => Some(self.target.unwrap_or(u32::MAX).min(present.len()).max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(text: &str) -> CpuSet {
        text.parse().expect(text)
    }

    #[test]
    fn lists_read_with_blanks_and_print_canonically() {
        for (text, cpus, shown) in [
            ("0-1,3-5, 9", vec![0, 1, 3, 4, 5, 9], "0-1,3-5,9"),
            ("0\n", vec![0], "0"),
            ("", vec![], ""),
            ("\n", vec![], ""),
            (" 2 - 3 ,1", vec![1, 2, 3], "1-3"),
        ] {
            assert_eq!(set(text).iter().collect::<Vec<_>>(), cpus, "{text:?}");
            assert_eq!(set(text).to_string(), shown);
        }
        for bad in ["a", "1-", "3-1", "-1", "0-8192", "4294967296", "1;2"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn up_from_the_lowest_down_from_the_highest() {
        let on = |cpu| Switch { cpu, on: true };
        let off = |cpu| Switch { cpu, on: false };
        let present = set("0-3");
        assert_eq!(plan(&set("0"), &present, 3).switches, vec![on(1), on(2)]);
        assert_eq!(plan(&set("0,2"), &present, 3).switches, vec![on(1)]);
        assert_eq!(
            plan(&set("0-3"), &present, 2).switches,
            vec![off(3), off(2)]
        );
        assert_eq!(plan(&set("0-3"), &present, 4), Plan::default());
        assert_eq!(plan(&set("0"), &present, 6).missing, 2);
    }

    #[test]
    fn cpu_zero_is_never_switched() {
        let down = plan(&set("0-1"), &set("0-1"), 0);
        assert_eq!(
            down,
            Plan {
                switches: vec![Switch { cpu: 1, on: false }],
                missing: 1
            }
        );
        let up = plan(&set("1"), &set("0-1"), 2);
        assert_eq!(
            up,
            Plan {
                switches: vec![],
                missing: 1
            }
        );
    }

    #[test]
    fn the_kernels_maxcpus_is_the_first_target() {
        let order = CpuOrder::at_start(CpuPolicy::OnlineAll, "root=/dev/vda maxcpus=2 quiet");
        assert_eq!(order.sweep_target(&set("0-3")), Some(2));
        let none = CpuOrder::at_start(CpuPolicy::OnlineAll, "root=/dev/vda quiet");
        assert_eq!(none.sweep_target(&set("0-3")), Some(4));
        let managed = CpuOrder::at_start(CpuPolicy::Managed, "quiet");
        assert_eq!(managed.sweep_target(&set("0-3")), None);
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(cpus in proptest::collection::btree_set(0..=MAX_CPU, 0..40)) {
            let set = CpuSet(cpus);
            prop_assert_eq!(set.to_string().parse::<CpuSet>().expect("own output"), set);
        }

        #[test]
        fn never_panics(text in ".{0,60}") {
            let _ = text.parse::<CpuSet>();
        }

        #[test]
        fn a_carried_out_plan_is_the_target_or_says_what_is_missing(
            online in proptest::collection::btree_set(0..32_u32, 0..32),
            more in proptest::collection::btree_set(0..32_u32, 0..32),
            target in 0..40_u32,
        ) {
            let present = CpuSet(online.union(&more).copied().collect());
            let plan = plan(&CpuSet(online.clone()), &present, target);
            let mut after = online;
            for switch in &plan.switches {
                prop_assert!(switch.cpu != 0);
                let changed =
                    if switch.on { after.insert(switch.cpu) } else { after.remove(&switch.cpu) };
                prop_assert!(changed);
            }
            prop_assert_eq!(u32::try_from(after.len()).expect("small").abs_diff(target), plan.missing);
        }
    }
}
