//! How far is the trial of a part of the control plane, and what speaks against it?
//!
//! Kubernetes replaces the pods of a `Deployment`. A trial begins when all of them run the new
//! image and one of them leads, and lasts while that stays so.

use crate::permit::required;
use crate::proof::RECONNECT_SECONDS;

/// Renewals of a Lease by one holder after which it leads for certain.
pub const RENEWALS: u32 = 2;
/// Ends of a container after which no more are waited for.
pub const MOST_ENDS: u64 = 3;
/// Time after which a part without a leader or without its pods is unhealthy, seconds.
pub const SETTLED_SECONDS: u64 = 60;

/// Pods by which Kubernetes may differ from the number of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollingBudget {
    /// Most replicas that are away.
    pub max_unavailable: u32,
    /// Most pods above the replicas.
    pub max_surge: u32,
}

/// The budget of `replicas`. Both numbers are rounded down, since Kubernetes rounds percentages of
/// a surge up. One replica may always be away: otherwise none could change.
#[must_use]
pub fn rolling_budget(
    replicas: u32,
    min_healthy_percent: u32,
    max_active_percent: u32,
) -> RollingBudget {
    let above = u64::from(max_active_percent.saturating_sub(100));
    let surge = u64::from(replicas) * above / 100;
    let away = replicas.saturating_sub(required(replicas, min_healthy_percent));
    RollingBudget {
        max_unavailable: away.max(1),
        max_surge: u32::try_from(surge).unwrap_or(u32::MAX),
    }
}

/// A pod of a part that is not to end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSigns {
    /// Name of the pod.
    pub name: String,
    /// Whether it has the image of the template.
    pub has_image: bool,
    /// Time since its container runs, and is ready where that is asked for. `None` otherwise.
    pub runs_seconds: Option<u64>,
    /// Times at which its container ended.
    pub ends: u64,
    /// Why the container waits, if it does.
    pub waits_for: Option<String>,
}

/// The Lease of a part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaseSigns {
    /// Pod of its holder. Empty if nobody holds it.
    pub holder: String,
    /// Renewals by this holder that were seen.
    pub renewals: u32,
    /// Time since the last change of the Lease was seen.
    pub quiet_seconds: u64,
}

/// A part of the control plane as its objects show it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceSigns {
    /// Number of pods that it should have.
    pub replicas: u32,
    /// Available replicas that it must have. Zero for a part of which only the leader is ready.
    pub available_wanted: u32,
    /// Replicas that the controller of `Deployment`s calls available.
    pub available: u32,
    /// Pods that are not to end.
    pub pods: Vec<PodSigns>,
    /// Its Lease. `None` if there is none.
    pub lease: Option<LeaseSigns>,
    /// Time since the template has its image, if the fleet set it.
    pub set_seconds: Option<u64>,
    /// Time for which fewer pods were available than wanted.
    pub short_seconds: u64,
}

/// A trial of a part of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceTrial {
    /// Age of the trial, as [`crate::proof::Trial`] has it.
    pub ran_seconds: u64,
    /// What speaks against the version.
    pub fault: Option<String>,
}

impl ServiceTrial {
    /// Rest of the trial for a proof of `trial_seconds`, as a guest's daemon reports it.
    #[must_use]
    pub const fn left_seconds(&self, trial_seconds: u64) -> u64 {
        (trial_seconds + crate::engine::MARGIN_SECONDS).saturating_sub(self.ran_seconds)
    }
}

impl ServiceSigns {
    /// What is missing until all pods run the image and one of them leads.
    fn missing(&self) -> Result<u64, String> {
        let of_image = self.pods.iter().filter(|pod| pod.has_image);
        let of_image = u32::try_from(of_image.count()).unwrap_or(u32::MAX);
        let pods = u32::try_from(self.pods.len()).unwrap_or(u32::MAX);
        if of_image != self.replicas || pods != self.replicas {
            let wanted = self.replicas;
            return Err(format!(
                "{of_image} of its {pods} pods have the image, and {wanted} should"
            ));
        }
        let mut runs_seconds = u64::MAX;
        for pod in &self.pods {
            let Some(seconds) = pod.runs_seconds else {
                let reason = pod.waits_for.as_deref().unwrap_or("it is not ready");
                return Err(format!("pod {} does not run: {reason}", pod.name));
            };
            runs_seconds = runs_seconds.min(seconds);
        }
        if self.available < self.available_wanted {
            let (has, wanted) = (self.available, self.available_wanted);
            return Err(format!("{has} of {wanted} replicas are available"));
        }
        let lease = self.lease.as_ref();
        let lease = lease.ok_or_else(|| "it has no Lease".to_owned())?;
        if !self.pods.iter().any(|pod| pod.name == lease.holder) {
            return Err("none of its pods holds the Lease".to_owned());
        }
        if lease.renewals < RENEWALS {
            let (holder, times) = (&lease.holder, lease.renewals);
            return Err(format!("pod {holder} renewed the Lease {times} times"));
        }
        Ok(runs_seconds)
    }
}

/// Looks at a part whose template has the image of a turn.
#[must_use]
pub fn trial(signs: &ServiceSigns, progress_seconds: u64) -> ServiceTrial {
    let set_seconds = signs.set_seconds.unwrap_or(0);
    let faulty = |text: String| ServiceTrial {
        ran_seconds: set_seconds.max(RECONNECT_SECONDS),
        fault: Some(text),
    };
    let of_image = signs.pods.iter().filter(|pod| pod.has_image);
    if let Some(pod) = of_image.max_by_key(|pod| pod.ends)
        && pod.ends >= MOST_ENDS
    {
        return faulty(format!("pod {} ended {} times", pod.name, pod.ends));
    }
    match signs.missing() {
        Ok(ran_seconds) => ServiceTrial {
            ran_seconds,
            fault: None,
        },
        Err(text) if set_seconds >= progress_seconds => {
            faulty(format!("after {set_seconds} s {text}"))
        }
        Err(_) => ServiceTrial {
            ran_seconds: 0,
            fault: None,
        },
    }
}

/// What speaks against a part that is in no turn.
#[must_use]
pub fn fault_of_settled(signs: &ServiceSigns) -> Option<String> {
    if signs.available < signs.available_wanted && signs.short_seconds >= SETTLED_SECONDS {
        let (has, wanted) = (signs.available, signs.available_wanted);
        return Some(format!("{has} of {wanted} replicas are available"));
    }
    let lease = signs.lease.as_ref()?;
    let is_quiet = lease.quiet_seconds >= SETTLED_SECONDS;
    is_quiet.then(|| {
        let seconds = lease.quiet_seconds;
        format!("nobody has renewed its Lease for {seconds} s")
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PROGRESS: u64 = 600;

    fn pod(number: u32, seconds: u64) -> PodSigns {
        PodSigns {
            name: format!("pod-{number}"),
            has_image: true,
            runs_seconds: Some(seconds),
            ..PodSigns::default()
        }
    }

    fn whole() -> ServiceSigns {
        ServiceSigns {
            replicas: 3,
            available_wanted: 3,
            available: 3,
            pods: (0..3)
                .map(|number| pod(number, 20 + u64::from(number)))
                .collect(),
            lease: Some(LeaseSigns {
                holder: "pod-1".to_owned(),
                renewals: RENEWALS,
                quiet_seconds: 0,
            }),
            set_seconds: Some(40),
            short_seconds: 0,
        }
    }

    /// One thing that is missing, and a word of the reason.
    fn broken() -> Vec<(&'static str, ServiceSigns)> {
        let with = |change: &dyn Fn(&mut ServiceSigns)| {
            let mut signs = whole();
            change(&mut signs);
            signs
        };
        let lease = |signs: &mut ServiceSigns, holder: &str, renewals| {
            let lease = signs.lease.as_mut().expect("a Lease");
            lease.holder = holder.to_owned();
            lease.renewals = renewals;
        };
        vec![
            ("2 of its 3 pods", with(&|it| it.pods[0].has_image = false)),
            ("2 of its 2 pods", with(&|it| drop(it.pods.pop()))),
            (
                "3 of its 4 pods",
                with(&|it| it.pods.push(PodSigns::default())),
            ),
            (
                "pod-2 does not run",
                with(&|it| it.pods[2].runs_seconds = None),
            ),
            ("2 of 3 replicas", with(&|it| it.available = 2)),
            ("no Lease", with(&|it| it.lease = None)),
            ("holds the Lease", with(&|it| lease(it, "other", 9))),
            ("renewed the Lease 1", with(&|it| lease(it, "pod-1", 1))),
        ]
    }

    /// Requirement: B23
    #[test]
    fn trial_runs_while_all_pods_have_the_image_and_one_of_them_leads() {
        let good = trial(&whole(), PROGRESS);
        assert_eq!((good.ran_seconds, good.fault.clone()), (20, None));
        assert_eq!(good.left_seconds(60), 70);
        for (reason, signs) in broken() {
            let waits = trial(&signs, PROGRESS);
            assert_eq!((waits.ran_seconds, waits.fault), (0, None), "{reason}");
        }
        let mut scheduler = whole();
        (scheduler.available, scheduler.available_wanted) = (1, 0);
        assert_eq!(
            trial(&scheduler, PROGRESS).ran_seconds,
            20,
            "its leader alone is ready"
        );
    }

    /// Requirement: B23
    #[test]
    fn image_that_is_not_proven_in_time_is_at_fault_with_the_reason() {
        for (reason, mut signs) in broken() {
            signs.set_seconds = Some(PROGRESS);
            let late = trial(&signs, PROGRESS);
            assert!(late.ran_seconds >= RECONNECT_SECONDS);
            let text = late.fault.expect("a fault");
            assert!(text.contains(reason), "{text}");
            signs.set_seconds = Some(PROGRESS - 1);
            assert_eq!(trial(&signs, PROGRESS).fault, None);
        }
        let mut late = whole();
        late.set_seconds = Some(PROGRESS);
        assert_eq!(trial(&late, PROGRESS).fault, None, "its trial goes on");
    }

    /// Requirement: B23
    #[test]
    fn image_whose_container_ends_again_and_again_is_not_waited_for() {
        let mut signs = whole();
        signs.pods[1].runs_seconds = None;
        for (ends, is_faulty) in [(MOST_ENDS - 1, false), (MOST_ENDS, true)] {
            signs.pods[1].ends = ends;
            assert_eq!(trial(&signs, PROGRESS).fault.is_some(), is_faulty);
        }
        signs.pods[1].has_image = false;
        assert_eq!(
            trial(&signs, PROGRESS).fault,
            None,
            "it has the image before"
        );
    }

    /// Requirement: B23
    #[test]
    fn settled_part_is_unhealthy_without_replicas_or_without_a_leader() {
        assert_eq!(fault_of_settled(&whole()), None);
        let mut short = whole();
        short.available = 2;
        assert_eq!(fault_of_settled(&short), None, "a pod may restart");
        short.short_seconds = SETTLED_SECONDS;
        assert!(fault_of_settled(&short).is_some());
        let mut quiet = whole();
        let lease = quiet.lease.as_mut().expect("a Lease");
        lease.quiet_seconds = SETTLED_SECONDS;
        let text = fault_of_settled(&quiet).expect("a fault");
        assert_eq!(text, "nobody has renewed its Lease for 60 s");
        quiet.lease = None;
        assert_eq!(fault_of_settled(&quiet), None, "one replica needs no Lease");
    }

    proptest! {
        /// Requirement: B23
        #[test]
        fn rolling_budget_keeps_both_shares(
            replicas in 1_u32..200,
            healthy in 0_u32..100,
            active in 100_u32..=200,
        ) {
            let budget = rolling_budget(replicas, healthy, active);
            let most = u64::from(replicas) + u64::from(budget.max_surge);
            prop_assert!(most * 100 <= u64::from(replicas) * u64::from(active));
            let left = replicas - budget.max_unavailable.min(replicas);
            prop_assert!(left >= required(replicas, healthy));
            // Kubernetes refuses a budget without a step.
            prop_assert!(budget.max_unavailable >= 1);
        }
    }
}
