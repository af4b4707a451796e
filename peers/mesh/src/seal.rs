//! Seals datagrams, so that only a machine with a key of the file can make or read one.
//!
//! ```text
//! version 1 │ nonce 12 │ ChaCha20-Poly1305 of the message │ tag 16
//! ```
//! The gossip itself is idempotent: a datagram that is sent again changes nothing.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::keys::Keys;

/// Form of the datagram.
const VERSION: u8 = 1;
/// Bytes before the sealed message.
const HEAD: usize = 1 + NONCE_LEN;

/// A key of datagrams.
pub(crate) struct SealKey(LessSafeKey);

impl SealKey {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        let unbound = UnboundKey::new(&CHACHA20_POLY1305, key);
        Self(LessSafeKey::new(
            unbound.expect("the algorithm's keys have 32 bytes"),
        ))
    }
}

/// Seals a message with the machine's own key. `None` if the machine has no random numbers.
pub(crate) fn seal(keys: &Keys, message: &[u8]) -> Option<Vec<u8>> {
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).ok()?;
    let mut sealed = message.to_vec();
    let unique = Nonce::assume_unique_for_key(nonce);
    let key = &keys.own().seal.0;
    key.seal_in_place_append_tag(unique, Aad::from([VERSION]), &mut sealed)
        .ok()?;
    let mut datagram = Vec::with_capacity(HEAD + sealed.len());
    datagram.push(VERSION);
    datagram.extend(nonce);
    datagram.extend(sealed);
    Some(datagram)
}

/// Opens a datagram with any key of the file. `None` if it was not sealed with one.
pub(crate) fn open(keys: &Keys, datagram: &[u8]) -> Option<Vec<u8>> {
    let (head, sealed) = datagram.split_at_checked(HEAD)?;
    let (version, nonce) = head.split_first()?;
    if *version != VERSION {
        return None;
    }
    keys.all().iter().find_map(|key| {
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut message = sealed.to_vec();
        let opened = key
            .seal
            .0
            .open_in_place(nonce, Aad::from([VERSION]), &mut message);
        let length = opened.ok()?.len();
        message.truncate(length);
        Some(message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(secrets: &[u8]) -> Keys {
        let secrets: Vec<[u8; 32]> = secrets.iter().map(|byte| [*byte; 32]).collect();
        Keys::from_secrets(&secrets).unwrap()
    }

    /// Requirement: V23
    #[test]
    fn v23_machines_understand_each_other_at_each_step_of_a_change_of_the_key() {
        let steps = [keys(&[1]), keys(&[1, 2]), keys(&[2, 1]), keys(&[2])];
        for pair in steps.windows(2) {
            for (from, to) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
                let sealed = seal(from, b"hello").unwrap();
                assert_eq!(open(to, &sealed).as_deref(), Some(b"hello".as_slice()));
            }
        }
        assert_eq!(open(&steps[3], &seal(&steps[0], b"hello").unwrap()), None);
    }

    /// Requirement: V23
    #[test]
    fn v23_one_flipped_bit_or_a_missing_byte_is_dropped() {
        let keys = keys(&[1]);
        let sealed = seal(&keys, b"hello").unwrap();
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&keys, &changed), None, "bit {bit}");
        }
        for length in 0..sealed.len() {
            assert_eq!(open(&keys, &sealed[..length]), None);
        }
    }
}
