//! Pages of monitors, as a judge of releases reads them.

use crate::exposition::{GuestFigures, PAGE_BYTES};

/// A monitor's page. The order of its lines and lines of other metrics change nothing, and figures
/// that are read are read again from the page that they make.
pub fn guest_figures(data: &[u8]) {
    let read = GuestFigures::read(data);
    if data.len() < PAGE_BYTES / 2 {
        let mut lines: Vec<&[u8]> = data.split(|byte| *byte == b'\n').collect();
        lines.reverse();
        lines.push(b"vm_monitor_agent_connecte 7");
        assert_eq!(GuestFigures::read(&lines.join(&b'\n')), read);
    }
    if let Some(figures) = read {
        assert_eq!(
            GuestFigures::read(written(figures).as_bytes()),
            Some(figures)
        );
    }
}

fn written(figures: GuestFigures) -> String {
    let memory = "scope=\"machine\",resource=\"memory\"";
    let rows = [
        (
            "vm_monitor_agent_connected".to_owned(),
            u64::from(figures.agent_connected),
        ),
        (
            "process_resident_memory_bytes".to_owned(),
            figures.resident_bytes,
        ),
        ("vm_monitor_oom_kills_total".to_owned(), figures.oom_kills),
        (
            "vm_monitor_downscale_refusals_total{reason=\"pressure\"}".to_owned(),
            figures.refusals,
        ),
        (
            "vm_monitor_upscale_requests_total".to_owned(),
            figures.upscale_requests,
        ),
        (
            format!("host_pressure_stalled_seconds_total{{{memory},kind=\"full\"}}"),
            figures.full_seconds,
        ),
        (
            format!("host_pressure_percent{{{memory},kind=\"some\",window=\"10s\"}}"),
            figures.waiting_percent,
        ),
    ];
    let lines = rows.map(|(series, value)| format!("{series} {value}\n"));
    lines.concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_seed_of_guest_figures_holds() {
        test_seeds::hold(&[("guest_figures", guest_figures)]);
    }

    proptest! {
        #[test]
        fn pages_of_monitors_hold(
            numbers in prop::array::uniform7(any::<u32>()),
            more in prop::collection::vec(
                "(vm_monitor_(agent_connected|oom_kills_total|upscale_requests_total)|process_resident_memory_bytes|vm_monitor_downscale_refusals_total|host_pressure_percent)?(\\{(reason|scope|kind)=\"[^\n]{0,9}\"\\}?)?[ 0-9.eN-]{0,9}",
                0..5,
            ),
            cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        ) {
            let [connected, rest @ ..] = numbers;
            let rest = rest.map(u64::from);
            let mut page = written(GuestFigures {
                agent_connected: connected % 2 == 1,
                resident_bytes: rest[0],
                oom_kills: rest[1],
                refusals: rest[2],
                upscale_requests: rest[3],
                full_seconds: rest[4],
                waiting_percent: rest[5],
            });
            page.push_str(&more.join("\n"));
            let end = cut.map_or(page.len(), |cut| cut.index(page.len()));
            guest_figures(&page.as_bytes()[..end]);
        }

        #[test]
        fn any_bytes_hold_as_pages_of_monitors(data in prop::collection::vec(any::<u8>(), 0..400)) {
            guest_figures(&data);
        }
    }
}
