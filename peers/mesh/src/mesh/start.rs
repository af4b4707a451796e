//! Joins the other machines and runs the tasks of a mesh.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use daemon_kit::driver::drive;
use futures::future::BoxFuture;
use peers_core::{Action, Event, Leader};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{ACTIONS, Config, Mesh, Shared, StartError, join};
use crate::driver::{LeaderShell, shown};
use crate::gossip::Gossip;
use crate::state_file::StateFile;
use crate::{ping, published, server};

/// The tasks of a mesh.
struct Tasks {
    listener: TcpListener,
    shell: LeaderShell,
    events: mpsc::Sender<Event>,
    actions: mpsc::Receiver<Action>,
    state: StateFile,
}

impl Mesh {
    /// Joins and listens. The future runs until the token is cancelled.
    ///
    /// # Errors
    /// [`StartError`]. A machine to join by that does not respond is none: the gossip tries again.
    pub async fn start(
        config: Config,
    ) -> Result<
        (
            Self,
            impl FnOnce(CancellationToken) -> BoxFuture<'static, Result<(), String>>,
        ),
        StartError,
    > {
        let state = StateFile::load(&config.state_file);
        let failed = |error: String| StartError::Listen(config.listen, error);
        let listener = TcpListener::bind(config.listen)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let mut seeds = state.kept().peers.clone();
        let mut known = state.kept().expected;
        if let Some(address) = config.join {
            let there = join(&config, address).await?;
            // Before it hears them it must not take itself for all machines.
            known = known.max(there.len() + 1);
            seeds.extend(there);
            seeds.push(address);
        }
        let generation = u64::try_from(config.clock.wall().0).unwrap_or_default();
        let gossip =
            Gossip::start(&config.id, generation, config.listen, &seeds, &config.keys).await;
        let gossip = gossip.map_err(|error| failed(format!("{error:#}")))?;
        let clock = config.clock;
        let core = Leader::new(
            clock.now(),
            config.id.clone(),
            config.priority,
            config.settings,
            known,
        );
        let (events, inbox) = mpsc::channel(64);
        let (sender, actions) = mpsc::channel(ACTIONS);
        let (show, seen) = watch::channel(shown(&core, clock));
        let shell = LeaderShell {
            core,
            clock,
            inbox,
            actions: sender,
            shown: show,
        };
        let shared = Shared {
            wishes: Mutex::new(state.kept().wishes.clone()),
            config,
            gossip,
            shown: seen,
            refused: AtomicU64::new(0),
            conflict: Mutex::default(),
            here: Mutex::default(),
            peers: Mutex::default(),
        };
        let mesh = Self(Arc::new(shared));
        let tasks = Tasks {
            listener,
            shell,
            events,
            actions,
            state,
        };
        let running = mesh.clone();
        Ok((mesh, move |cancel| {
            Box::pin(running.run(tasks, generation, cancel)) as _
        }))
    }

    async fn run(
        self,
        tasks: Tasks,
        generation: u64,
        cancel: CancellationToken,
    ) -> Result<(), String> {
        let Tasks {
            listener,
            mut shell,
            events,
            actions,
            state,
        } = tasks;
        self.publish_constants().await;
        let all = async {
            tokio::join!(
                server::serve(listener, self.clone(), cancel.clone()),
                drive(&mut shell, &cancel),
                self.carry_out(actions, events.clone()),
                self.look(generation, events, state),
                ping::run(self.clone()),
            )
        };
        tokio::select! {
            () = cancel.cancelled() => Ok(()),
            ended = self.0.gossip.ended() => Err(ended),
            _ = all => Ok(()),
        }
    }

    async fn publish_constants(&self) {
        let config = &self.0.config;
        self.0
            .gossip
            .publish(published::PRIORITY, Some(config.priority.to_string()))
            .await;
        self.0
            .gossip
            .publish(published::RELEASE, Some(config.release.clone()))
            .await;
    }
}
