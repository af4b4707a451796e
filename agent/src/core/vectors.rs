//! Conformance vectors of the state machine: sequences S1 to S10 of docs/compatibility/agent.md
//! §7.5, each with the complete set of actions.

use protocol::core::Core as _;
use protocol::revision::{FLAG_DOWNSCALE, FLAG_UPSCALE};

use super::bench::{
    Bench, MONITOR, NO_REV, SCHEDULER, VM_OBJECT, Want, at, down, load, none, setup, span, units,
    up, wait,
};
use super::event::{DownscaleResponse, Event, Failure, UpscaleRequest};
use super::observation::Path;
use super::warnings::Warning;

#[test]
fn sequence_s01_up_and_down() {
    let mut b = setup(1, 4, 1).rev().bench();
    b.init(1);
    b.metrics(0.2, 0.3, 0.0);
    b.expect(0.2, &none().permit_request(Some(1), 2, load(0.3), up(1)));
    b.start(0.2, SCHEDULER);
    b.expect(0.3, &none());
    b.permit(0.3, 2);
    b.expect(0.3, &wait(4.9).vm_patch(1, 2, up(1)));
    b.start(0.3, VM_OBJECT);
    b.expect(0.4, &wait(4.8));
    b.patched(0.4);
    b.vm_updated(0.4, (1, 4, 1), Some((up(1), 0.4)));
    assert_eq!(b.latencies(Path::EndToEnd), [(span(0.2), FLAG_UPSCALE)]);
    b.expect(0.4, &wait(4.8).mon_up(1, 2, up(1)));
    b.start(0.4, MONITOR);
    b.expect(0.5, &wait(4.7));
    b.notified(0.5);
    b.expect(0.5, &wait(4.7));
    b.metrics(0.6, 0.0, 0.0);
    b.expect(0.6, &wait(4.6).mon_down(2, 1, down(2)));
    b.start(0.6, MONITOR);
    b.expect(0.7, &wait(4.5));
    b.answered(0.7, DownscaleResponse::Allowed);
    b.expect(0.7, &wait(4.5).vm_patch(2, 1, down(2)));
    b.start(0.7, VM_OBJECT);
    b.expect(0.8, &wait(4.4));
    b.patched(0.8);
    b.vm_updated(0.9, (1, 4, 1), Some((down(2), 0.9)));
    assert_eq!(b.latencies(Path::EndToEnd), [(span(0.3), FLAG_DOWNSCALE)]);
    b.expect(0.9, &none().permit_request(Some(2), 1, load(0.0), down(2)));
    b.start(0.9, SCHEDULER);
    b.expect(1.0, &none());
    b.permit(1.0, 1);
    b.expect(1.0, &wait(4.9));
    assert_eq!(b.core.faults().total(), 0);
}

/// Requirement: N12
#[test]
fn sequence_s02_heartbeat() {
    let mut b = setup(1, 4, 1).rev().bench();
    b.metrics(0.0, 0.0, 0.0);
    b.expect(0.0, &none().permit_request(None, 1, load(0.0), NO_REV));
    b.start(0.0, SCHEDULER);
    b.permit(0.1, 1);
    for tenth in 2..=200_u32 {
        let t = f64::from(tenth) / 10.0;
        if tenth % 50 == 0 {
            b.expect(t, &none().permit_request(Some(1), 1, load(0.0), NO_REV));
            b.start(t, SCHEDULER);
            b.expect(t + 0.05, &none());
            b.permit(t + 0.05, 1);
        } else {
            b.expect(t, &wait(f64::from(50 - tenth % 50) / 10.0));
        }
    }
    assert_eq!(b.latencies(Path::Permit), []);
}

#[test]
fn sequence_s03_partial_then_full_permit() {
    let mut b = setup(1, 4, 1).rev().bench();
    b.init(1);
    b.metrics(0.2, 1.0, 12_345_678.0);
    b.expect(0.2, &none().permit_request(Some(1), 4, load(1.0), up(1)));
    b.start(0.2, SCHEDULER);
    b.expect(0.2, &none());
    b.permit(0.3, 3);
    assert_eq!(b.latencies(Path::Permit), [(span(0.1), FLAG_UPSCALE)]);
    b.expect_warned(
        0.3,
        &wait(1.9).vm_patch(1, 3, up(1)),
        &[Warning::PermitDenied],
    );
    b.start(0.3, VM_OBJECT);
    b.patched(0.4);
    b.vm_updated(0.5, (1, 4, 3), Some((up(1), 0.5)));
    assert_eq!(b.latencies(Path::EndToEnd), [(span(0.3), FLAG_UPSCALE)]);
    b.expect(
        2.5,
        &none()
            .permit_request(Some(3), 4, load(1.0), up(2))
            .mon_up(1, 3, up(2)),
    );
    b.start(2.5, SCHEDULER);
    b.start(2.5, MONITOR);
    b.permit(2.6, 4);
    b.notified(2.6);
    assert_eq!(b.latencies(Path::Permit), [(span(0.1), FLAG_UPSCALE)]);
    b.expect(2.6, &wait(4.9).vm_patch(3, 4, up(2)));
    b.start(2.6, VM_OBJECT);
    b.patched(2.7);
    b.vm_updated(2.8, (1, 4, 4), Some((up(2), 2.7)));
    assert_eq!(b.latencies(Path::EndToEnd), [(span(0.2), FLAG_UPSCALE)]);
    b.expect(2.8, &wait(4.7).mon_up(3, 4, up(2)));
}

#[test]
fn sequence_s04_denied_downscale() {
    let mut setup = setup(1, 8, 6);
    setup.timers.permit_request_tick = span(7.0);
    setup.timers.monitor_denied_downscale_cooldown = span(4.0);
    let mut b = setup.bench();
    let (allowed, denied) = (DownscaleResponse::Allowed, DownscaleResponse::DENIED);
    // Starts the planned downscale request. While it is in flight nothing else changes.
    let request_shrink = |b: &mut Bench, t: f64, mut planned: Want| {
        b.expect(t, &planned);
        b.start(t, MONITOR);
        planned.0.monitor_down = None;
        b.expect(t, &planned);
    };
    b.init(6);
    b.metrics(0.2, 0.0, 0.0);
    request_shrink(&mut b, 0.2, wait(6.8).mon_down(6, 5, NO_REV));
    b.answered(0.3, denied);
    b.expect(0.3, &wait(4.0));
    request_shrink(&mut b, 4.3, wait(2.7).mon_down(6, 5, NO_REV));
    b.answered(4.4, allowed);
    request_shrink(
        &mut b,
        4.4,
        wait(2.6).mon_down(5, 4, NO_REV).vm_patch(6, 5, NO_REV),
    );
    b.answered(4.5, allowed);
    request_shrink(
        &mut b,
        4.5,
        wait(2.5).mon_down(4, 3, NO_REV).vm_patch(6, 4, NO_REV),
    );
    b.answered(4.6, allowed);
    request_shrink(
        &mut b,
        4.6,
        wait(2.4).mon_down(3, 2, NO_REV).vm_patch(6, 3, NO_REV),
    );
    b.answered(4.7, denied);
    b.expect(4.7, &wait(2.3).vm_patch(6, 3, NO_REV));
    b.start(4.7, VM_OBJECT);
    b.expect(4.7, &wait(2.3));
    b.patched(4.8);
    b.expect(
        4.8,
        &wait(3.9).permit_request(Some(6), 3, load(0.0), NO_REV),
    );
    b.start(4.8, SCHEDULER);
    b.expect(4.8, &wait(3.9));
    b.permit(4.9, 3);
    b.expect(4.9, &wait(3.8));
    request_shrink(&mut b, 8.7, wait(3.1).mon_down(3, 2, NO_REV));
    b.answered(8.8, denied);
    b.expect(8.8, &wait(3.0));
    b.expect(
        11.8,
        &wait(1.0).permit_request(Some(3), 3, load(0.0), NO_REV),
    );
    b.start(11.8, SCHEDULER);
    b.expect(11.8, &wait(1.0));
    b.permit(11.9, 3);
    b.expect(11.9, &wait(0.9));
    request_shrink(&mut b, 12.8, wait(6.0).mon_down(3, 2, NO_REV));
    b.answered(12.9, allowed);
    request_shrink(
        &mut b,
        12.9,
        wait(5.9).mon_down(2, 1, NO_REV).vm_patch(3, 2, NO_REV),
    );
    b.answered(13.0, allowed);
    b.expect(13.0, &wait(5.8).vm_patch(3, 1, NO_REV));
    b.start(13.0, VM_OBJECT);
    b.expect(13.0, &wait(5.8));
    b.patched(13.1);
    b.expect(13.1, &none().permit_request(Some(3), 1, load(0.0), NO_REV));
    b.start(13.1, SCHEDULER);
    b.expect(13.1, &none());
    b.permit(13.2, 1);
    b.expect(13.2, &wait(6.9));
}

/// An upscale request with a size is one step, one without is one unit. The maximum bounds both.
///
/// Requirement: N37
#[test]
fn upscale_request_with_a_size_is_one_step() {
    let gib = |n: u64| Some(protocol::units::Bytes(n << 30));
    for (wanted, units) in [
        (None, 2),
        (gib(1), 2),
        (gib(3), 3),
        (gib(4), 4),
        (gib(999), 4),
    ] {
        let setup = setup(1, 4, 1).rev();
        let mut b = setup.bench();
        b.init(1);
        b.metrics(0.2, 0.0, 0.0);
        let request = UpscaleRequest {
            reason: None,
            wanted,
        };
        b.core
            .handle(at(0.2), Event::MonitorUpscaleRequested(request));
        b.expect(
            0.2,
            &wait(10.0).permit_request(Some(1), units, load(0.0), up(1)),
        );
    }
}

#[test]
fn sequence_s05_requested_upscale() {
    let mut setup = setup(1, 4, 1).rev();
    setup.timers.monitor_requested_upscale_valid_period = span(6.0);
    let mut b = setup.bench();
    b.init(1);
    b.metrics(0.2, 0.0, 0.0);
    b.expect(0.2, &wait(4.8));
    b.core.handle(
        at(0.2),
        Event::MonitorUpscaleRequested(UpscaleRequest::default()),
    );
    b.expect(0.2, &wait(6.0).permit_request(Some(1), 2, load(0.0), up(1)));
    b.start(0.2, SCHEDULER);
    b.expect(0.3, &wait(5.9));
    b.permit(0.3, 2);
    b.expect(0.3, &wait(4.9).vm_patch(1, 2, up(1)));
    b.start(0.3, VM_OBJECT);
    b.patched(0.4);
    b.vm_updated(0.4, (1, 4, 1), Some((up(1), 0.4)));
    assert_eq!(b.latencies(Path::EndToEnd), [(span(0.2), FLAG_UPSCALE)]);
    b.expect(0.4, &wait(4.8).mon_up(1, 2, up(1)));
    b.start(0.4, MONITOR);
    b.notified(0.5);
    b.expect(0.5, &wait(4.7));
    b.expect(5.2, &wait(1.0).permit_request(Some(2), 2, load(0.0), up(1)));
    b.start(5.2, SCHEDULER);
    b.expect(5.3, &wait(0.9));
    b.permit(5.3, 2);
    b.expect(5.3, &wait(0.9));
    b.expect(6.2, &wait(4.0).mon_down(2, 1, down(2)));
}

/// Forward and backward steps of S6, with their own clock.
struct Pivot {
    b: Bench,
    t: f64,
    tick_end: f64,
}

impl Pivot {
    fn until_heartbeat(&self) -> Want {
        wait(self.tick_end - self.t)
    }

    /// Lets a tenth of a second pass. With `turn`, the load in its middle reverses the direction.
    fn tenth(&mut self, turn: bool) {
        if turn {
            self.b.metrics(self.t + 0.05, 0.3, 0.0);
        }
        self.t += 0.1;
    }

    fn forward(&mut self, step: u32, turn: bool) {
        let want = self.until_heartbeat();
        match step {
            0 => {
                self.b.expect(self.t, &want.mon_down(2, 1, down(1)));
                self.b.start(self.t, MONITOR);
                self.tenth(turn);
                self.b.answered(self.t, DownscaleResponse::Allowed);
            }
            1 => {
                self.b.expect(self.t, &want.vm_patch(2, 1, down(1)));
                self.b.start(self.t, VM_OBJECT);
                self.tenth(turn);
                self.b.patched(self.t);
            }
            2 => {
                self.b
                    .vm_updated(self.t, (1, 3, 1), Some((down(1), self.t)));
                assert_eq!(
                    self.b.latencies(Path::EndToEnd),
                    [(span(0.2), FLAG_DOWNSCALE)]
                );
                if turn {
                    self.b.metrics(self.t, 0.3, 0.0);
                }
            }
            _ => {
                self.b.expect(
                    self.t,
                    &none().permit_request(Some(2), 1, load(0.0), down(1)),
                );
                self.b.start(self.t, SCHEDULER);
                self.tick_end = self.t + 5.0;
                self.tenth(turn);
                self.b.permit(self.t, 1);
            }
        }
    }

    fn undo(&mut self, step: u32) {
        let want = self.until_heartbeat();
        match step {
            0 => {
                self.b.expect(self.t, &want.mon_up(1, 2, up(2)));
                self.b.start(self.t, MONITOR);
                self.tenth(false);
                self.b.notified(self.t);
            }
            1 => {
                self.b.expect(self.t, &want.vm_patch(1, 2, up(2)));
                self.b.start(self.t, VM_OBJECT);
                self.tenth(false);
                self.b.patched(self.t);
            }
            2 => {}
            _ => {
                self.b
                    .expect(self.t, &none().permit_request(Some(1), 2, load(0.3), up(2)));
                self.b.start(self.t, SCHEDULER);
                self.tick_end = self.t + 5.0;
                self.tenth(false);
                self.b.permit(self.t, 2);
            }
        }
    }
}

#[test]
fn sequence_s06_pivot_back() {
    for last in 0..=3 {
        let mut b = setup(1, 3, 2).rev().bench();
        b.init(2);
        b.metrics(0.2, 0.0, 0.0);
        let mut pivot = Pivot {
            b,
            t: 0.2,
            tick_end: 5.0,
        };
        for step in 0..=last {
            pivot.forward(step, step == last);
        }
        for step in (0..=last).rev() {
            pivot.undo(step);
        }
        let want = pivot.until_heartbeat();
        pivot.b.expect(pivot.t, &want);
        assert_eq!(pivot.b.core.using(), units(2), "variant {last}");
        assert_eq!(pivot.b.core.faults().total(), 0, "variant {last}");
    }
}

#[test]
fn sequence_s07_maximum_drops_below_use() {
    let mut b = setup(1, 3, 2).rev().bench();
    b.init(2);
    b.metrics(0.2, 0.3, 0.0);
    b.expect(0.2, &wait(4.8));
    b.vm_updated(0.3, (1, 1, 1), None);
    b.expect(0.3, &wait(4.7).mon_down(2, 1, down(1)));
    b.start(0.3, MONITOR);
    b.answered(0.4, DownscaleResponse::Allowed);
    b.expect(0.4, &wait(4.6).vm_patch(2, 1, down(1)));
    b.start(0.4, VM_OBJECT);
    b.patched(0.5);
    b.expect(0.5, &none().permit_request(Some(2), 1, load(0.3), down(1)));
    b.start(0.5, SCHEDULER);
    b.permit(0.6, 1);
    b.vm_updated(0.7, (1, 1, 1), Some((down(1), 0.7)));
    assert_eq!(b.latencies(Path::EndToEnd), [(span(0.4), FLAG_DOWNSCALE)]);
    b.expect(0.7, &wait(4.8));
}

#[test]
fn sequence_s08_minimum_rises_above_use() {
    let mut b = setup(1, 3, 2).bench();
    b.init(2);
    b.metrics(0.2, 0.3, 0.0);
    b.expect(0.2, &wait(4.8));
    b.vm_updated(0.3, (3, 3, 3), None);
    b.expect(0.3, &none().permit_request(Some(2), 3, load(0.3), NO_REV));
    b.start(0.3, SCHEDULER);
    b.permit(0.4, 3);
    b.expect(0.4, &wait(4.9).vm_patch(2, 3, NO_REV));
    b.start(0.4, VM_OBJECT);
    b.patched(0.5);
    b.expect(0.5, &wait(4.8).mon_up(2, 3, NO_REV));
    b.start(0.5, MONITOR);
    b.notified(0.6);
    b.expect(0.6, &wait(4.7));
}

#[test]
fn sequence_s09_failures_are_retried() {
    for failure in [Failure::NotApplied, Failure::Unknown] {
        let mut setup = setup(1, 2, 1);
        setup.timers.permit_retry_wait = span(2.0);
        setup.timers.vm_patch_retry_wait = span(3.0);
        let mut b = setup.bench();
        b.init(1);
        b.metrics(0.2, 0.3, 0.0);
        let ask = none().permit_request(Some(1), 2, load(0.3), NO_REV);
        b.expect(0.2, &ask);
        b.start(0.2, SCHEDULER);
        b.end(0.3, SCHEDULER, |id| Event::PermitDone(id, Err(failure)));
        b.expect_warned(0.3, &wait(2.0), &[Warning::PermitFailed]);
        b.expect(2.3, &ask);
        b.start(2.3, SCHEDULER);
        b.permit(2.4, 2);
        b.expect(2.4, &wait(4.9).vm_patch(1, 2, NO_REV));
        b.start(2.4, VM_OBJECT);
        b.end(2.5, VM_OBJECT, |id| Event::VmPatchDone(id, Err(failure)));
        b.expect_warned(2.5, &wait(3.0), &[Warning::VmPatchFailed]);
        b.expect(5.5, &wait(1.8).vm_patch(1, 2, NO_REV));
        b.start(5.5, VM_OBJECT);
        b.patched(5.6);
        b.expect(5.6, &wait(1.7).mon_up(1, 2, NO_REV));
    }
}

#[test]
fn sequence_s10_metrics_change_while_shrinking() {
    use Warning::{MissingMetrics, MonitorDownscaleInactive, VmPatchBusy};
    let mut setup = setup(1, 2, 3);
    setup.is_monitor_active = false;
    let mut b = setup.bench();
    let first = none().permit_request(None, 3, None, NO_REV);
    b.expect_warned(0.0, &first, &[MissingMetrics, MonitorDownscaleInactive]);
    b.start(0.0, SCHEDULER);
    b.permit(0.1, 3);
    b.core.handle(at(0.2), Event::MonitorActive);
    b.expect_warned(0.2, &wait(4.8).mon_down(3, 2, NO_REV), &[MissingMetrics]);
    b.start(0.2, MONITOR);
    b.metrics(0.3, 0.0, 150_589_570.0);
    b.expect(0.3, &wait(4.7));
    b.answered(0.4, DownscaleResponse::Allowed);
    b.expect(
        0.4,
        &wait(4.6).vm_patch(3, 2, NO_REV).mon_down(2, 1, NO_REV),
    );
    b.start(0.4, VM_OBJECT);
    b.start(0.4, MONITOR);
    b.answered(0.5, DownscaleResponse::Allowed);
    b.expect_warned(0.5, &wait(4.5), &[VmPatchBusy]);
    b.patched(0.6);
    b.expect(
        0.6,
        &none()
            .permit_request(Some(3), 2, load(0.0), NO_REV)
            .vm_patch(2, 1, NO_REV),
    );
    b.start(0.6, SCHEDULER);
    b.start(0.6, VM_OBJECT);
    b.permit(0.7, 2);
    b.expect(0.7, &wait(4.9));
    b.patched(0.8);
    b.expect(0.8, &none().permit_request(Some(2), 1, load(0.0), NO_REV));
    b.start(0.8, SCHEDULER);
    b.permit(0.9, 1);
    b.expect(0.9, &wait(4.9));
}

/// Requirement: N09
#[test]
fn first_request_reports_the_size_in_use() {
    // The load votes for the maximum.
    let mut b = setup(1, 4, 2).bench();
    b.metrics(0.0, 9.0, 0.0);
    b.expect(0.0, &none().permit_request(None, 2, load(9.0), NO_REV));
    b.start(0.0, SCHEDULER);
    b.expect(0.05, &none());
}
