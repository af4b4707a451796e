//! Sets of CPU numbers in the kernel's format, and the switches that lead from the online CPUs to a
//! target.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Highest accepted CPU number: the largest `NR_CPUS` of a stock x86 kernel.
pub const MAX_CPU: u32 = 8191;

/// A set of CPU numbers. Text form: `"0-1,3-5, 9"`; blanks are accepted, empty text is the empty
/// set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuSet(BTreeSet<u32>);

/// Error for a text that is not a CPU list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a CPU list such as 0-1,3 with numbers up to {MAX_CPU}")]
pub struct CpuListError(pub String);

impl CpuSet {
    /// Number of CPUs in the set.
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set contains `cpu`.
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

/// One write to `cpuN/online` in sysfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// Number of the CPU, the N of `cpuN`; never 0.
    pub cpu: u32,
    /// `true` writes `1`, `false` writes `0`.
    pub on: bool,
}

/// Switches from the online CPUs to a target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Writes to `cpuN/online`, in order. Empty when the target is reached or cannot come nearer.
    pub switches: Vec<Switch>,
    /// Number of CPUs by which the target stays out of reach, in either direction: too few are
    /// present, or only CPU 0 is left.
    pub missing: u32,
}

/// Plans the switches to `target` online CPUs: off from the highest, on from the lowest, never CPU
/// 0.
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

/// Which part decides how many CPUs are online.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuPolicy {
    /// Every present CPU, unless a target says less. CPUs that appear later are switched on up to
    /// the target.
    OnlineAll,
    /// `PUT /cpu` only, once per request.
    Managed,
}

/// The current policy and target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuOrder {
    /// Whether the daemon switches CPUs by itself.
    pub policy: CpuPolicy,
    /// Last target in CPUs. `None` before the first.
    pub target: Option<u32>,
}

impl CpuOrder {
    /// Policy and target at the start. `maxcpus=N` of the kernel is a target until the first `PUT
    /// /cpu`.
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

    /// Number of CPUs that the sweep keeps online; `None` if it switches none.
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
    fn cpus_go_up_from_the_lowest_and_down_from_the_highest() {
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
    fn maxcpus_of_the_kernel_is_the_first_target() {
        let order = CpuOrder::at_start(CpuPolicy::OnlineAll, "root=/dev/vda maxcpus=2 quiet");
        assert_eq!(order.sweep_target(&set("0-3")), Some(2));
        let none = CpuOrder::at_start(CpuPolicy::OnlineAll, "root=/dev/vda quiet");
        assert_eq!(none.sweep_target(&set("0-3")), Some(4));
        let managed = CpuOrder::at_start(CpuPolicy::Managed, "quiet");
        assert_eq!(managed.sweep_target(&set("0-3")), None);
    }

    proptest! {
        #[test]
        fn printed_set_reads_back(cpus in proptest::collection::btree_set(0..=MAX_CPU, 0..40)) {
            let set = CpuSet(cpus);
            prop_assert_eq!(set.to_string().parse::<CpuSet>().expect("own output"), set);
        }

        #[test]
        fn never_panics(text in ".{0,60}") {
            let _ = text.parse::<CpuSet>();
        }

        #[test]
        fn executed_plan_reaches_the_target_or_reports_the_missing_cpus(
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
