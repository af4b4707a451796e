//! `bellows`: the command for people. `bellows up` runs all components on one machine in one
//! process. The other commands prepare the machine, query the running system, and explain its
//! decisions.

#![forbid(unsafe_code)]

mod actions;
mod api;
mod args;
mod check;
mod cli;
mod cluster;
mod commands;
mod context;
mod decision;
mod fail;
mod forward;
mod get;
mod guests;
mod http;
mod instance;
mod node_orders;
mod output;
mod past;
mod places;
mod plugin;
mod postgres;
mod progress;
mod resize;
mod terminal;
mod top;
mod unix_http;
mod up;
mod view;
mod vm_orders;
mod vm_state;
mod web;

use std::process::ExitCode;

use clap::Parser;
use daemon_kit::exit::Exit;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() {
                Exit::Config
            } else {
                Exit::Drained
            }
            .into();
        }
    };
    let paint = terminal::Paint::stderr(cli.global.color);
    // kube and the embedded server use the process's provider. No other code has installed one
    // before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match cli::run(cli) {
        Ok(code) => code,
        Err(fail) => {
            let text = fail.to_string();
            let (first, rest) = text.split_once(':').unwrap_or(("error", &text));
            terminal::err(&format!(
                "{}:{rest}",
                paint.paint(terminal::Tone::Bad, first)
            ));
            fail.exit().into()
        }
    }
}
