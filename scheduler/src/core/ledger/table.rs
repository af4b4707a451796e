//! A map for hundreds of thousands of entries: a lookup by digest, a walk in the order of the keys.
//!
//! A lookup in a tree of names compares a dozen keys. With 200,000 entries each of them is a cache
//! miss. Here a digest of the key leads to the entry. Only insertion, removal and walks use the
//! tree. The digest is the same in every process and no walk uses it, so a replay sees one order.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Cells of the smallest index.
const FEWEST_CELLS: usize = 8;
/// Value of an empty cell.
const NOWHERE: u32 = u32::MAX;

/// An entry of a [`Table`]. Its key must not change while the table has it.
pub(super) trait Keyed {
    type Key: Ord + Clone + Hash;

    fn key(&self) -> &Self::Key;
}

#[derive(Debug, Clone)]
pub(super) struct Table<V: Keyed> {
    order: BTreeMap<V::Key, u32>,
    index: Index,
    slots: Vec<Option<V>>,
    free: Vec<u32>,
}

impl<V: Keyed> Table<V> {
    pub(super) fn new() -> Self {
        Self {
            order: BTreeMap::new(),
            index: Index::default(),
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Where the entry of a key is, as long as it is not removed.
    pub(super) fn slot<Q>(&self, key: &Q) -> Option<u32>
    where
        V::Key: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let is_it = |slot| {
            self.at(slot)
                .is_some_and(|entry| entry.key().borrow() == key)
        };
        self.index.find(digest(key), is_it)
    }

    /// The entry at a slot.
    pub(super) fn at(&self, slot: u32) -> Option<&V> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub(super) fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        V::Key: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.at(self.slot(key)?)
    }

    pub(super) fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        V::Key: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let slot = self.slot(key)?;
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// Puts in an entry, in place of one of the same key; where it is.
    pub(super) fn insert(&mut self, entry: V) -> u32 {
        if let Some(slot) = self.slot(entry.key()) {
            self.slots[slot as usize] = Some(entry);
            return slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            // Four billion entries would need more memory than there is.
            u32::try_from(self.slots.len() - 1).unwrap_or(NOWHERE)
        });
        self.index.insert(digest(entry.key()), slot);
        self.order.insert(entry.key().clone(), slot);
        self.slots[slot as usize] = Some(entry);
        slot
    }

    /// Takes out an entry; where it was.
    pub(super) fn remove<Q>(&mut self, key: &Q) -> Option<(u32, V)>
    where
        V::Key: Borrow<Q>,
        Q: Ord + Hash + ?Sized,
    {
        let slot = self.slot(key)?;
        self.index.remove(digest(key), slot);
        self.order.remove(key);
        self.free.push(slot);
        Some((slot, self.slots.get_mut(slot as usize)?.take()?))
    }

    /// All entries in the order of their keys.
    pub(super) fn values(&self) -> impl ExactSizeIterator<Item = &V> {
        // Every slot in the order holds an entry.
        self.order
            .values()
            .map(|slot| self.slots[*slot as usize].as_ref().expect("is held"))
    }
}

impl<V: Keyed + Hash> Hash for Table<V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.order.len().hash(state);
        self.values().for_each(|entry| entry.hash(state));
    }
}

/// The digest by which a key is found.
pub(super) fn digest<Q: Hash + ?Sized>(key: &Q) -> u64 {
    // Its keys are fixed, unlike those of the standard library's maps.
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// Slots by digest: cells in a row, each slot in the cell that its digest names or in the next one
/// that is free. At most half of the cells are in use.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    /// The lower half of a digest, and the slot.
    cells: Vec<(u32, u32)>,
    used: usize,
}

impl Index {
    /// The slot of this digest that is the right one.
    pub(super) fn find(&self, digest: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        if self.cells.is_empty() {
            return None;
        }
        let (tag, mut cell) = (tag(digest), self.home(tag(digest)));
        loop {
            match self.cells[cell] {
                (_, NOWHERE) => return None,
                (at, slot) if at == tag && is_it(slot) => return Some(slot),
                _ => cell = self.next(cell),
            }
        }
    }

    /// Puts in a slot that is not there.
    pub(super) fn insert(&mut self, digest: u64, slot: u32) {
        if self.cells.len() < 2 * (self.used + 1) {
            let more = (2 * self.cells.len()).max(FEWEST_CELLS);
            let before = std::mem::replace(&mut self.cells, vec![(0, NOWHERE); more]);
            for (tag, slot) in before.into_iter().filter(|(_, slot)| *slot != NOWHERE) {
                self.place(tag, slot);
            }
        }
        self.used += 1;
        self.place(tag(digest), slot);
    }

    /// Takes out a slot.
    pub(super) fn remove(&mut self, digest: u64, slot: u32) {
        if self.cells.is_empty() {
            return;
        }
        let mut hole = self.home(tag(digest));
        while self.cells[hole].1 != slot {
            if self.cells[hole].1 == NOWHERE {
                return;
            }
            hole = self.next(hole);
        }
        self.used -= 1;
        // Whatever was pushed beyond the hole by those before it moves up, so that it is found.
        let (mut cell, mask) = (self.next(hole), self.cells.len() - 1);
        while self.cells[cell].1 != NOWHERE {
            let home = self.home(self.cells[cell].0);
            if cell.wrapping_sub(home) & mask >= cell.wrapping_sub(hole) & mask {
                self.cells[hole] = self.cells[cell];
                hole = cell;
            }
            cell = self.next(cell);
        }
        self.cells[hole] = (0, NOWHERE);
    }

    fn place(&mut self, tag: u32, slot: u32) {
        let mut cell = self.home(tag);
        while self.cells[cell].1 != NOWHERE {
            cell = self.next(cell);
        }
        self.cells[cell] = (tag, slot);
    }

    /// The number of cells is a power of two.
    fn home(&self, tag: u32) -> usize {
        tag as usize & (self.cells.len() - 1)
    }

    fn next(&self, cell: usize) -> usize {
        (cell + 1) & (self.cells.len() - 1)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
const fn tag(digest: u64) -> u32 {
    digest as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Entry(String, u8);

    impl Keyed for Entry {
        type Key = String;

        fn key(&self) -> &String {
            &self.0
        }
    }

    proptest! {
        #[test]
        fn it_holds_what_a_tree_holds(steps in prop::collection::vec((0..40_u8, 0..3_u8, any::<u8>()), 0..200)) {
            let (mut table, mut tree) = (Table::new(), BTreeMap::new());
            for (name, step, value) in steps {
                let key = format!("k{name}");
                if step == 0 {
                    let gone = table.remove(key.as_str()).map(|(_, entry): (u32, Entry)| entry.1);
                    prop_assert_eq!(gone, tree.remove(&key));
                } else {
                    let slot = table.insert(Entry(key.clone(), value));
                    prop_assert_eq!(table.at(slot), Some(&Entry(key.clone(), value)));
                    tree.insert(key, value);
                }
                let held: Vec<(String, u8)> = table.values().map(|entry| (entry.0.clone(), entry.1)).collect();
                prop_assert_eq!(held, tree.clone().into_iter().collect::<Vec<_>>());
                for name in 0..40 {
                    let key = format!("k{name}");
                    prop_assert_eq!(table.get(&key).map(|entry| entry.1), tree.get(&key).copied());
                    prop_assert_eq!(table.get_mut(key.as_str()).map(|entry| entry.1), tree.get(&key).copied());
                }
            }
        }

        /// Digests that all meet in a few cells, around the end of the row too.
        #[test]
        fn slots_of_like_digests_are_told_apart(steps in prop::collection::vec((0..24_u32, any::<bool>()), 0..120)) {
            let alike = |slot: u32| u64::from(slot % 3) * 7;
            let (mut index, mut held) = (Index::default(), BTreeMap::new());
            for (slot, is_put) in steps {
                match (is_put, held.contains_key(&slot)) {
                    (true, false) => {
                        index.insert(alike(slot), slot);
                        held.insert(slot, ());
                    }
                    (false, _) => {
                        index.remove(alike(slot), slot);
                        held.remove(&slot);
                    }
                    _ => {}
                }
                prop_assert_eq!(index.used, held.len());
                for slot in 0..24 {
                    let found = index.find(alike(slot), |at| at == slot);
                    prop_assert_eq!(found, held.contains_key(&slot).then_some(slot));
                }
            }
        }
    }
}
