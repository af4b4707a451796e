//! Waits for the order of an incoming migration, and starts a QEMU like the guest's.

use protocol::migration::{IncomingOrder, IncomingReport, IncomingStage};
use protocol::runner::{ExitReason, ExitReport};
use tokio::process::Child;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Channels, End, Runner};
use crate::core::budget::PlugBudget;
use crate::core::nic;
use crate::core::shape::Shape;
use crate::core::transfer::{Arrival, Unfit};
use crate::shell::initial_state::first_state;
use crate::shell::input::{Input, MigrationOrder};
use crate::shell::record::{Record, write_json};
use crate::shell::run_error::RunError;
use crate::shell::{bridge, guestd_key, overlay, transfer};

impl Runner {
    /// Waits for the order of an incoming migration, and starts a QEMU of the guest's shape. `Err`
    /// is an end without one.
    pub(super) async fn receive(
        &self,
        channels: &mut Channels,
        cancel: &CancellationToken,
    ) -> Result<Result<(Record, Option<Child>), End>, RunError> {
        info!("waiting for a guest");
        loop {
            let input = tokio::select! {
                () = cancel.cancelled() => return Ok(Err(End::Left)),
                input = channels.receiver.recv() => input,
            };
            match input {
                Some(Input::Migration(MigrationOrder::Receive(order), answer)) => {
                    let id = order.id.clone();
                    match self.build_like(*order).await {
                        Ok(Ok(started)) => {
                            let mut state = first_state(&started.0);
                            state.generation = channels.state.borrow().generation + 1;
                            channels.state.send_replace(state.clone());
                            let _ = answer.send(Ok(state));
                            return Ok(Ok(started));
                        }
                        Ok(Err(unfit)) => {
                            let why = unfit.to_string();
                            warn!(migration = id, why, "the guest cannot be received");
                            channels.state.send_modify(|state| {
                                state.generation += 1;
                                state.incoming = Some(IncomingReport {
                                    id,
                                    stage: IncomingStage::Failed,
                                    destination: None,
                                    problem: Some(why),
                                    began_unix_us: None,
                                });
                            });
                            let _ = answer.send(Ok(channels.state.borrow().clone()));
                        }
                        Err(error) => return Err(error),
                    }
                }
                Some(Input::Migration(_, answer)) => {
                    let _ = answer.send(Err("there is no guest here".to_owned()));
                }
                Some(Input::Stop(_)) => {
                    let report = ExitReport {
                        success: true,
                        reason: ExitReason::Requested,
                        code: None,
                        message: "no guest came".to_owned(),
                    };
                    write_json(&self.paths.exit(), &report)?;
                    return Ok(Err(End::Exited(report)));
                }
                Some(_) => {}
                // The driver itself holds a sender.
                None => return Ok(Err(End::Left)),
            }
        }
    }

    /// Starts a QEMU for the guest of a migration order.
    async fn build_like(
        &self,
        order: IncomingOrder,
    ) -> Result<Result<(Record, Option<Child>), Unfit>, RunError> {
        let from = transfer::manifest(&self.config, &order).and_then(|from| {
            transfer::is_reached(&self.config, &order, &from)?;
            Ok(from)
        });
        let from = match from {
            Ok(from) => from,
            Err(unfit) => return Ok(Err(unfit)),
        };
        let accel = self.accel().await;
        if accel != from.accel {
            return Ok(Err(Unfit::Accel {
                here: accel.as_str(),
                there: from.accel.as_str(),
            }));
        }
        let key = self.paths.guestd_key();
        guestd_key::keep(&key, from.guestd_key.as_ref())
            .map_err(|error| RunError::GuestdKey(key, error))?;
        let shares_disk = transfer::make_disk(&self.config, &self.paths, &order, &from).await?;
        let drives = transfer::make_drives(&self.config, &self.paths, &from, shares_disk).await;
        let drives = match drives {
            Ok(drives) => drives,
            Err(unfit) => return Ok(Err(unfit)),
        };
        let queues = nic::queues(&from.shape, Some(&from));
        bridge::prepare(&self.config, Some(&from), queues).await?;
        overlay::prepare(self.config.overlay.as_ref(), queues).await?;
        info!(
            migration = order.id,
            shares_disk, "starting a QEMU like the guest's"
        );
        let plugged = u32::try_from(from.cpus.len()).unwrap_or(u32::MAX);
        let shape = Shape {
            // A new QEMU has started only its initial vCPU threads.
            budget: from.shape.budget.map(|_| {
                PlugBudget::new(
                    from.shape.sockets,
                    from.shape.boot_cpus.saturating_add(plugged),
                )
            }),
            ..from.shape.clone()
        };
        let record = Record {
            boot_ms: from.boot_ms,
            order: from.order.clone(),
            orders: 0,
            arrival: Some(Arrival {
                order,
                shares_disk,
                listening: false,
                begun: false,
                ran: false,
            }),
            ..self.new_record(accel, shape, drives)
        };
        self.launch(record, Some(&from), Vec::new()).await.map(Ok)
    }
}
