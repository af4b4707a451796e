//! Why the server did not start, or ended.

use std::net::SocketAddr;

use crate::core::error::ApiError;
use crate::kinds;
use crate::shell::db::DbError;
use crate::shell::files::FileError;
use crate::shell::pki;

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] DbError),
    /// A file beside it cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no certificate to serve with.
    #[error(transparent)]
    Pki(#[from] pki::PkiError),
    /// Another program listens on the address.
    #[error("the address {addr} is taken by another program: stop it or choose another port")]
    AddressInUse {
        /// Address that the server was to listen on.
        addr: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("listen on {addr}")]
    Listen {
        /// Address that the server was to listen on.
        addr: SocketAddr,
        /// Error of the system call.
        #[source]
        source: std::io::Error,
    },
    /// A document that is part of the program is broken.
    #[error(transparent)]
    Documents(#[from] kinds::DocumentError),
    /// The objects every store has could not be put in.
    #[error("put in the object {name}")]
    Bootstrap {
        /// Name of the object that was refused.
        name: String,
        /// Why the store refused it.
        #[source]
        source: ApiError,
    },
    /// The preparation ended with a panic.
    #[error("the start failed inside the server")]
    Panicked,
    /// The system gave no thread.
    #[error("start the store's thread")]
    Thread(#[source] std::io::Error),
}

/// Why the server ended other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The writing thread ended with a panic; what was answered is durable.
    #[error("the store's thread failed")]
    Store,
}
