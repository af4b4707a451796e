//! The certificate of a guest (docs/compatibility/neonvm.md §2.10). The question this answers:
//! given `spec.tls`, the three objects of a certificate and the time, what is the one next step?
//!
//! ```text
//!            key              request            certificate        both deleted
//!   nothing ─────► key alone ─────────► waiting ─────────────► kept ─────────────► rest
//!                      ▲                  │ denied, failed, or not fit for use
//!                      └── withdrawn ◄────┘ (after a pause that doubles)
//! ```
//!
//! The temporary secret `tls-neonvm-<vm>-tmp` holds the key while there is no certificate for it.
//! The CertificateRequest has the VM's name. The secret `tls-neonvm-<vm>` gets key and certificate
//! in one write, so the two always belong together. Each step ends with a read of the objects, so
//! an interrupted step, or that of another controller, is continued from where it stands.
//!
//! The VM does not start before there is a certificate for its key. After that it starts, even if
//! the certificate is due or expired: an issuer that is away must not keep guests down. The status
//! reports the expiry.
//!
//! Invariants:
//! * A certificate is stored only with its key, for the wanted name, and before its end.
//!   `unfit_certificate_is_not_stored`
//! * The pair in use is left alone until the next one is complete.
//!   `renewal_goes_on_with_the_old_pair`
//! * From any interrupted step the next decision leads on.
//!   `from_any_state_a_good_issuer_leads_to_rest`

pub mod decide;
pub mod failure;
pub mod objects;
pub mod state;
pub mod wanted;

pub use decide::{Decision, decide, renewal};
pub use failure::{CertificateFailure, Unfit};
pub use objects::{
    Certificate, Facts, Order, OwnRequest, PublicKey, Request, RequestStatus, Step, Stored,
    TemporaryKey,
};
pub use state::{CertificateDump, CertificateState, NextStep};
pub use wanted::{Span as Lifetime, TlsFault, Wanted};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
