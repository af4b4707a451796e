//! The open connections of one server, and which of them is closed when there are too many.
//!
//! Any host may connect, and a peer authenticates only with its first request. So a new connection
//! is admitted, if necessary in place of the one that has been idle longest. A connection with a
//! request in progress is never closed. Authenticated idle connections are closed last.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::Bounds;
use super::metrics::Reason;

/// Number of a connection, never reused.
pub(super) type Id = u64;

/// Result for a new connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The connection is open, in place of another one if a limit was reached.
    Admitted {
        id: Id,
        instead_of: Option<(Id, Reason)>,
    },
    /// A limit is reached and every connection has a request in progress.
    Refused(Reason),
}

#[derive(Debug)]
struct Entry {
    peer: IpAddr,
    is_trusted: bool,
    /// Number of requests in progress.
    requests: usize,
    /// Position in the order in which connections became idle.
    idle_since: u64,
}

impl Entry {
    const fn key(&self, id: Id) -> (bool, u64, Id) {
        (self.is_trusted, self.idle_since, id)
    }
}

/// All open connections of a server.
#[derive(Debug)]
pub(super) struct Table {
    bounds: Bounds,
    next: u64,
    open: BTreeMap<Id, Entry>,
    /// Idle connections as (trusted, since, id). The first one is closed first.
    idle: BTreeSet<(bool, u64, Id)>,
    peers: BTreeMap<IpAddr, usize>,
}

impl Table {
    pub(super) const fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            next: 0,
            open: BTreeMap::new(),
            idle: BTreeSet::new(),
            peers: BTreeMap::new(),
        }
    }

    /// Admits a connection of `peer`, which is idle at first.
    pub(super) fn admit(&mut self, peer: IpAddr) -> Admission {
        let of_peer = self.peers.get(&peer).copied().unwrap_or(0);
        let mut instead_of = None;
        if of_peer >= self.bounds.per_peer {
            let Some(id) = self.idlest(Some(peer)) else {
                return Admission::Refused(Reason::Peer);
            };
            instead_of = Some((id, Reason::Peer));
        } else if self.open.len() >= self.bounds.total {
            let Some(id) = self.idlest(None) else {
                return Admission::Refused(Reason::Capacity);
            };
            instead_of = Some((id, Reason::Capacity));
        }
        if let Some((id, _)) = instead_of {
            self.remove(id);
        }
        let id = self.tick();
        let entry = Entry {
            peer,
            is_trusted: false,
            requests: 0,
            idle_since: id,
        };
        self.idle.insert(entry.key(id));
        self.open.insert(id, entry);
        *self.peers.entry(peer).or_default() += 1;
        Admission::Admitted { id, instead_of }
    }

    /// Removes the connection that has been idle longest, of all peers.
    pub(super) fn remove_idlest(&mut self) -> Option<Id> {
        let id = self.idlest(None)?;
        self.remove(id);
        Some(id)
    }

    /// A request of the connection begins.
    pub(super) fn begin(&mut self, id: Id) {
        if let Some(entry) = self.open.get_mut(&id) {
            self.idle.remove(&entry.key(id));
            entry.requests += 1;
        }
    }

    /// A request of the connection has its response.
    pub(super) fn end(&mut self, id: Id) {
        let now = self.tick();
        if let Some(entry) = self.open.get_mut(&id) {
            entry.requests = entry.requests.saturating_sub(1);
            entry.idle_since = now;
            if entry.requests == 0 {
                self.idle.insert(entry.key(id));
            }
        }
    }

    /// The peer of the connection is authenticated.
    pub(super) fn trust(&mut self, id: Id) {
        if let Some(entry) = self.open.get_mut(&id) {
            let was_idle = self.idle.remove(&entry.key(id));
            entry.is_trusted = true;
            if was_idle {
                self.idle.insert(entry.key(id));
            }
        }
    }

    pub(super) fn remove(&mut self, id: Id) {
        let Some(entry) = self.open.remove(&id) else {
            return;
        };
        self.idle.remove(&entry.key(id));
        if let Some(count) = self.peers.get_mut(&entry.peer) {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&entry.peer);
            }
        }
    }

    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn idlest(&self, peer: Option<IpAddr>) -> Option<Id> {
        let is_of = |id: &Id| peer.is_none_or(|peer| self.open[id].peer == peer);
        let mut ids = self.idle.iter().map(|(.., id)| *id);
        ids.find(is_of)
    }
}

#[cfg(test)]
mod tests {
    use super::super::WhenFull;
    use super::*;

    const ATTACKER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 66));
    const FRIEND: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn table(total: usize, per_peer: usize) -> Table {
        Table::new(Bounds {
            total,
            per_peer,
            when_full: WhenFull::CloseIdlest,
        })
    }

    fn admitted(table: &mut Table, peer: IpAddr) -> (Id, Option<(Id, Reason)>) {
        match table.admit(peer) {
            Admission::Admitted { id, instead_of } => (id, instead_of),
            refused @ Admission::Refused(_) => panic!("{refused:?}"),
        }
    }

    #[test]
    fn longest_idle_connection_is_closed_for_a_new_one() {
        let mut table = table(3, 3);
        let [first, second, third] = [(); 3].map(|()| admitted(&mut table, ATTACKER).0);
        table.begin(first);
        table.end(first);
        for closed in [second, third, first] {
            let (id, instead_of) = admitted(&mut table, FRIEND);
            assert_eq!(instead_of, Some((closed, Reason::Capacity)));
            table.begin(id);
        }
        assert_eq!(table.admit(ATTACKER), Admission::Refused(Reason::Capacity));
    }

    #[test]
    fn peer_beyond_its_bound_closes_only_its_own_connections() {
        let mut table = table(4, 2);
        let (friend, _) = admitted(&mut table, FRIEND);
        let (first, _) = admitted(&mut table, ATTACKER);
        let (second, _) = admitted(&mut table, ATTACKER);
        let (third, instead_of) = admitted(&mut table, ATTACKER);
        assert_eq!(instead_of, Some((first, Reason::Peer)));
        table.begin(second);
        table.begin(third);
        assert_eq!(table.admit(ATTACKER), Admission::Refused(Reason::Peer));
        assert!(table.open.contains_key(&friend));
    }

    #[test]
    fn trusted_connection_outlives_later_unauthenticated_ones() {
        let mut table = table(2, 2);
        let (trusted, _) = admitted(&mut table, FRIEND);
        table.trust(trusted);
        for _ in 0..10 {
            let (_, instead_of) = admitted(&mut table, ATTACKER);
            assert_ne!(instead_of.map(|(id, _)| id), Some(trusted));
        }
    }

    #[test]
    fn ended_connection_leaves_its_place_and_nothing_else() {
        let mut table = table(1, 1);
        for _ in 0..3 {
            let (id, instead_of) = admitted(&mut table, FRIEND);
            assert_eq!(instead_of, None);
            table.begin(id);
            table.remove(id);
            // A late end of a request of a closed connection changes nothing.
            table.end(id);
        }
        assert!(table.open.is_empty() && table.idle.is_empty() && table.peers.is_empty());
        assert_eq!(table.remove_idlest(), None);
    }
}
