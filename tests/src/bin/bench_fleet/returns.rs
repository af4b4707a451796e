//! Bad programs in the same guest: how long until the former one serves its agent again.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bellows_tests::figures::{Figure, percentile};
use bellows_tests::guest_parts::PATIENCE;
use bellows_tests::image::guest_program;
use bellows_tests::patience::wait_for;
use protocol::parts::{PartName, PartPhase};

use super::changes::Rig;
use super::dials::{Dial, Outcome};

/// Shortest trial that guests accept, seconds.
const TRIAL_S: u64 = 20;
/// Longest time from a crash, or from the end of a trial, until the former program serves.
const RETURN_S: f64 = 10.0;
/// Ends about 2 s after its start.
const CRASHES: &str = "crashing-part";
/// One does not listen where its agent dials, the other one serves nobody.
const OUTLASTS: [&str; 2] = ["deaf-part", "hanging-part"];

/// Tries `count` programs that crash and `count` that do not.
pub(super) async fn returns(rig: &mut Rig, count: u32) -> Result<Vec<Figure>> {
    rig.parts.trial_s = TRIAL_S;
    let (mut crashed, mut outlasted) = (Vec::new(), Vec::new());
    for number in 1..=count {
        let outlasts = OUTLASTS[usize::try_from(number)? % OUTLASTS.len()];
        for name in [CRASHES, outlasts] {
            let back_s = attempt(rig, name).await;
            let back_s = back_s.with_context(|| format!("{name} {number}"))?;
            eprintln!("bad {number} of {count}, {name}: back after {back_s:.1} s");
            let of = if name == CRASHES {
                &mut crashed
            } else {
                &mut outlasted
            };
            of.push(back_s);
        }
    }
    let worst = |name, back_s: &[f64]| {
        Figure::lower(name, percentile(back_s, 100), "s", Some(RETURN_S)).made_of(back_s)
    };
    Ok(vec![
        worst("crash_to_former_s_max", &crashed),
        worst("trial_end_to_former_s_max", &outlasted),
    ])
}

/// Tries a program and keeps it not. Returns the time until the former one answered dials, seconds:
/// from the first refused dial if the program crashes, else from the end of the trial.
async fn attempt(rig: &mut Rig, name: &str) -> Result<f64> {
    let monitor = PartName::Monitor;
    rig.parts.bring(monitor, &guest_program(name)?).await?;
    let connections = rig.connections()?;
    rig.dials.take();
    let tried = Instant::now();
    rig.parts.order(monitor, "try").await?;
    // The guest's trial begins later, so the time after it is measured too long rather than short.
    let mut since = tried + Duration::from_secs(TRIAL_S);
    if name == CRASHES {
        let refused = |dial: &Dial| dial.began > tried && dial.outcome == Outcome::Refused;
        since = first(rig, "a refused dial", refused).await?.began;
    }
    let back = rig.parts.wait(monitor, PartPhase::Back, &rig.kept).await?;
    let served = |dial: &Dial| dial.began > since && dial.outcome == Outcome::Answered;
    let served = first(rig, "an answered dial", served).await?.ended;
    if name == CRASHES {
        ensure!(back.reason.contains("ended with status 1"), "{back:?}");
    }
    rig.reaches_connection(connections + 1).await?;
    rig.counts_restart().await?;
    Ok(served.duration_since(since).as_secs_f64())
}

/// Waits for the first dial of a kind.
async fn first(rig: &Rig, what: &str, is_it: impl Fn(&Dial) -> bool) -> Result<Dial> {
    wait_for(what, PATIENCE, || async {
        let seen = rig.dials.seen();
        let found = seen.iter().find(|dial| is_it(dial));
        found.copied().ok_or_else(|| format!("{:?}", seen.last()))
    })
    .await
}
