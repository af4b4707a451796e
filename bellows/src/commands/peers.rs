//! `bellows peers`: machines without Kubernetes that know each other.

use clap::{Args, Subcommand};
use hyper::http::Method;
use serde_json::{Value, json};

use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Cell, Format, Table, print_value};
use crate::terminal::{err, out};

/// Machines that know each other without Kubernetes.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum PeersCommand {
    /// List the machines: round-trip time, last response, which of them leads
    List(ListArgs),
    /// Set the number of members of a set over all machines; the leader divides them
    Scale(ScaleArgs),
}

/// How to print the machines.
#[derive(Debug, Clone, Args)]
pub(crate) struct ListArgs {
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// Change the number of members of a set over all machines.
///
/// Machines that have a set of this name in the namespace `default` get members. No member moves.
#[derive(Debug, Clone, Args)]
pub(crate) struct ScaleArgs {
    /// Name of the set
    #[arg(value_name = "SET")]
    set: String,
    /// Members over all machines
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u32).range(0..=1000))]
    count: u32,
}

pub(crate) async fn run(context: &Context, command: PeersCommand) -> Outcome {
    if context.asks_cluster() {
        return Err(Fail::usage("a cluster has no peers")
            .rule("in a cluster Kubernetes knows the nodes")
            .fix("bellows get nodes"));
    }
    match command {
        PeersCommand::List(args) => list(context, args.output).await,
        PeersCommand::Scale(args) => {
            let body = json!({"set": args.set, "count": args.count});
            context
                .admin(Method::POST, "/v1/peers/sets", Some(&body))
                .await?;
            out(&format!(
                "set {} is to have {} members over all machines",
                args.set, args.count
            ));
            Ok(())
        }
    }
}

async fn list(context: &Context, format: Format) -> Outcome {
    let status = context.admin(Method::GET, "/v1/peers", None).await?;
    if matches!(format, Format::Json | Format::Yaml) {
        return print_value(format, &status);
    }
    table(&status).print(context.paint());
    err(&summary(&status));
    Ok(())
}

/// What this machine does, in a sentence without its end.
pub(crate) fn summary(status: &Value) -> String {
    let role = status["role"].as_str().unwrap_or_default();
    let reason = match status["reason"].as_str() {
        Some(reason) if !reason.is_empty() => format!(" ({reason})"),
        _ => String::new(),
    };
    let dropped = status["dropped"].as_u64().unwrap_or_default();
    let dropped = match dropped {
        0 => String::new(),
        count => format!("; {count} messages of another key were dropped"),
    };
    let expected = &status["expected"];
    format!("this machine {role}{reason}; {expected} machines are expected{dropped}")
}

fn table(status: &Value) -> Table {
    let mut table = Table::new(&[
        "NAME",
        "ADDRESS",
        "STATE",
        "RTT",
        "LAST RESPONSE",
        "FREE UNITS",
        "SETS",
        "RELEASE",
    ]);
    for row in PeerRow::all(status) {
        let cells = [
            row.name,
            row.address,
            row.state,
            row.rtt,
            row.last_response,
            row.free_units,
            row.sets,
            row.release,
        ];
        table.row(cells.into_iter().map(Cell::from).collect());
    }
    table
}

/// A machine in words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PeerRow {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) state: String,
    pub(crate) rtt: String,
    pub(crate) last_response: String,
    pub(crate) free_units: String,
    pub(crate) sets: String,
    pub(crate) release: String,
}

impl PeerRow {
    /// All machines of a status, in its order.
    pub(crate) fn all(status: &Value) -> Vec<Self> {
        let peers = status["peers"].as_array().into_iter().flatten();
        peers.map(Self::of).collect()
    }

    fn of(peer: &Value) -> Self {
        let text = |name: &str| peer[name].as_str().unwrap_or_default().to_owned();
        let flag = |name: &str| peer[name].as_bool().unwrap_or(false);
        let state = match (flag("alive"), flag("leads")) {
            (false, _) => "dead",
            (true, true) => "leads",
            (true, false) => "alive",
        };
        let this = if flag("this") { ", this" } else { "" };
        let number = |name: &str, unit: &str| {
            let value = peer[name].as_f64();
            value.map_or("-".to_owned(), |value| format!("{value:.1} {unit}"))
        };
        let counts = peer["counts"].as_object().into_iter().flatten();
        let sets: Vec<String> = counts
            .map(|(set, count)| format!("{set}={count}"))
            .collect();
        Self {
            name: text("id"),
            address: text("address"),
            state: format!("{state}{this}"),
            rtt: number("rtt_ms", "ms"),
            last_response: number("last_response_s", "s ago"),
            free_units: peer["units_free"].to_string(),
            sets: if sets.is_empty() {
                "-".to_owned()
            } else {
                sets.join(",")
            },
            release: text("release"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::Paint;

    /// Requirement: V24
    #[test]
    fn v24_list_shows_round_trip_last_response_and_leader() {
        let status = json!({
            "role": "holds", "reason": "minority", "expected": 5, "dropped": 2,
            "peers": [
                {"id": "a", "address": "10.0.0.1:7", "alive": true, "leads": true, "this": false,
                 "rtt_ms": 12.34, "last_response_s": 3.0, "units_free": 7, "counts": {"web": 2}, "release": "1"},
                {"id": "b", "address": "10.0.0.2:7", "alive": false, "leads": false, "this": false,
                 "rtt_ms": null, "last_response_s": null, "units_free": 0, "counts": {}, "release": "1"},
            ],
        });
        let lines = table(&status).lines(Paint::PLAIN);
        assert!(
            lines[1].contains("leads")
                && lines[1].contains("12.3 ms")
                && lines[1].contains("3.0 s ago"),
            "{lines:?}"
        );
        assert!(
            lines[1].contains("web=2") && lines[2].contains("dead"),
            "{lines:?}"
        );
        assert_eq!(
            summary(&status),
            "this machine holds (minority); 5 machines are expected; 2 messages of another key were dropped"
        );
    }
}
