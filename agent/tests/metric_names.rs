//! Every metric's name, kind, label names and buckets, against a golden file: dashboards and alerts
//! are written by them.

mod peers;

use std::collections::{BTreeMap, BTreeSet};

use peers::guest::Page;
use peers::{Seen, World, position};

const GOLDEN: &str = include_str!("../testdata/metrics.txt");

/// `name kind label,label` for each metric of a page; a histogram's buckets once.
fn outline(page: &str) -> String {
    let mut kinds = BTreeMap::new();
    let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut buckets: Vec<&str> = Vec::new();
    let mut bucketed = BTreeSet::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a kind");
            kinds.insert(name.to_owned(), kind.to_owned());
        } else if !line.starts_with('#') && !line.is_empty() {
            let end = line.find(['{', ' ']).expect("a value");
            let family = kinds
                .keys()
                .filter(|name| line[..end].starts_with(name.as_str()));
            let family = family
                .max_by_key(|name| name.len())
                .expect("a kind")
                .clone();
            let inside = line[end..]
                .strip_prefix('{')
                .and_then(|rest| rest.split_once('}'));
            for pair in inside.map_or("", |(inside, _)| inside).split("\",") {
                if let Some((label, value)) = pair.split_once('=') {
                    if label == "le" {
                        bucketed.insert(family.clone());
                        let bound = value.trim_matches('"');
                        if !buckets.contains(&bound) {
                            buckets.push(bound);
                        }
                    } else {
                        labels
                            .entry(family.clone())
                            .or_default()
                            .insert(label.to_owned());
                    }
                }
            }
        }
    }
    let mut outline = String::new();
    for (name, kind) in &kinds {
        let labels: Vec<String> = labels.get(name).into_iter().flatten().cloned().collect();
        outline.push_str(format!("{name} {kind} {}", labels.join(",")).trim_end());
        outline.push('\n');
    }
    if !bucketed.is_empty() {
        outline.push_str(&format!("buckets {}\n", buckets.join(" ")));
    }
    outline
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_those_of_the_golden_file() {
    let mut world = World::new().await;
    world.start_connected().await;
    world.guest.set(Page::Good(0.5, 0.0));
    let told = |all: &[Seen]| position(all, |seen| matches!(seen, Seen::Granted(_)));
    world.trace.until("the monitor is told", told).await;
    world
        .until_metric("autoscaling_agent_scaling_latency_seconds_count")
        .await;
    world
        .until_metric("autoscaling_agent_billing_vms_current{")
        .await;
    let page = world.get(|a| a.metrics, "/metrics").await;
    let single = world.get(|a| a.vm_metrics, "/metrics").await;
    let body = |answer: &str| {
        answer
            .split_once("\r\n\r\n")
            .map_or(String::new(), |(_, body)| body.to_owned())
    };
    let outline = outline(&body(&page)) + &outline(&body(&single));
    assert_eq!(outline, GOLDEN, "the metrics are now:\n{outline}");
    world.stop().await;
}
