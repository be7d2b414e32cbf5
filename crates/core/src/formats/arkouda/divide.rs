//! Divides objects among the files of a set as Arkouda does, or joins them in one file.
//!
//! Locale `i` of `L` has the elements from `ceil(n*i/L)` to `ceil(n*(i+1)/L)` of each array; the bytes of a string and
//! the values of a segment are in the same file as the string or segment. The starts of strings and segments begin at 0
//! in each file; other numbers that refer to elements are unchanged. Source: Arkouda, `src/HDF5Msg.chpl` lines 943 to
//! 1408.

use std::sync::Arc;

use super::array::{ArraySource, Origin};
use super::kind::{ArkoudaKind, kind};
use super::limbs::{self, Limbs};
use super::marks::METADATA;
use super::numbers::{Segments, Values, counts};
use super::object::{HdfObject, JoinedObject, Object, elements, scalar, total};
use super::set::LocaleSet;
use super::strings::Strings;
use crate::dataset::opened::OpenStore;
use crate::store::format::{Division, Parts};
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::{EditStep, Piece, SourceFile, SourceObject};
use npyfs_io::content::Content;

/// The deepest nesting of groups that is divided.
const DEEPEST: usize = 64;

/// `ObjType` of Strings.
const STRINGS: i64 = 2;

/// Divides the object at `path` of the store in `files`; an empty path means everything.
pub(super) fn divide(files: &[Arc<OpenStore>], path: &[Vec<u8>], parts: Parts) -> Result<Division> {
    let set = LocaleSet::new(files).ok_or_else(|| Error::damaged("no files"))?;
    let set = Arc::new(set);
    let sources = files.iter().map(|store| source(store));
    let mut divider = Divider {
        sources: sources.collect::<Result<_>>()?,
        steps: vec![Vec::new(); parts.count()],
        lost: Vec::new(),
        set: set.clone(),
    };
    let mut object = set.root()?;
    for name in path {
        object = set.entered(&object)?;
        let text = String::from_utf8_lossy(name);
        object = object
            .member(&text)
            .ok_or_else(|| Error::damaged("its file does not have it"))?;
    }
    if path.is_empty() {
        let format = i64::from(parts != Parts::Single);
        divider.group(&object, &[("File_Format".to_owned(), format)])?;
        divider.members(&object, 0);
    } else {
        divider.object(&object, 0)?;
    }
    Ok(Division {
        steps: divider.steps,
        lost: divider.lost,
    })
}

/// Returns the paths of the datasets that the object at `path` is stored as, if they are side by side in its place.
pub(super) fn stored_as(files: &[Arc<OpenStore>], path: &[Vec<u8>]) -> Result<Vec<Vec<Vec<u8>>>> {
    let set = LocaleSet::new(files).ok_or_else(|| Error::damaged("no files"))?;
    let Some((name, above)) = path.split_last() else {
        return Ok(Vec::new());
    };
    let mut group = set.root()?;
    for name in above {
        group = set.entered(&group)?;
        match group.member(&String::from_utf8_lossy(name)) {
            Some(below) => group = below,
            None => return Ok(Vec::new()),
        }
    }
    group = set.entered(&group)?;
    let member = group.member(&String::from_utf8_lossy(name));
    let names = member.and_then(|member| member.objects().find_map(|o| o.stored_as.clone()));
    let names = names.unwrap_or_default().into_iter();
    Ok(names.map(|name| [above, &[name]].concat()).collect())
}

fn source(store: &OpenStore) -> Result<SourceFile> {
    let path = store.file.path.canonicalize()?;
    Ok(SourceFile::identified(&path, &store.file.identity))
}

/// Returns where the share of each of `parts` files begins, and where the last one ends.
fn block_rule(rows: u64, parts: usize) -> Vec<u64> {
    let of = parts as u128;
    // At most `rows`.
    let bound = |i: u128| (u128::from(rows) * i).div_ceil(of) as u64;
    (0..=of).map(bound).collect()
}

/// Steps under construction.
struct Divider {
    set: Arc<LocaleSet>,
    sources: Vec<SourceFile>,
    steps: Vec<Vec<EditStep>>,
    lost: Vec<(String, String)>,
}

impl Divider {
    fn parts(&self) -> usize {
        self.steps.len()
    }

    fn origin(&self, joined: &JoinedObject, kind: ArkoudaKind) -> Origin {
        Origin {
            set: self.set.clone(),
            joined: joined.clone(),
            object_type: kind.name(),
        }
    }

    /// Divides the members of a group; a member that cannot be divided is lost alone.
    fn members(&mut self, group: &JoinedObject, depth: usize) {
        for member in group.members() {
            let before: Vec<usize> = self.steps.iter().map(Vec::len).collect();
            if let Err(e) = self.object(&member, depth) {
                for (steps, before) in self.steps.iter_mut().zip(before) {
                    steps.truncate(before);
                }
                let key = member.path.join(&b'/');
                let key = String::from_utf8_lossy(&key).into_owned();
                self.lost.push((key, e.message));
            }
        }
    }

    fn object(&mut self, joined: &JoinedObject, depth: usize) -> Result<()> {
        if depth > DEEPEST {
            return Err(Error::damaged("groups too deep"));
        }
        if joined.path.len() == 1 && joined.name() == METADATA {
            return self.group(joined, &[]);
        }
        if let Some(why) = joined.objects().find_map(|object| match &object.what {
            HdfObject::Foreign(why) => Some(why.clone()),
            _ => None,
        }) {
            return Err(Error::damaged(why));
        }
        let joined = self.set.entered(joined)?;
        match kind(&self.set, &joined)? {
            ArkoudaKind::SegArray => self.segarray(&joined),
            ArkoudaKind::Categorical
            | ArkoudaKind::GroupBy
            | ArkoudaKind::DataFrame
            | ArkoudaKind::Index
            | ArkoudaKind::MultiIndex
            | ArkoudaKind::Group => {
                self.group(&joined, &[])?;
                let lost = self.lost.len();
                self.members(&joined, depth + 1);
                match self.lost.get(lost) {
                    // A group is not an object: its other members remain valid.
                    Some((member, why)) if kind(&self.set, &joined)? != ArkoudaKind::Group => {
                        let e = Error::damaged(format!("{member}: {why}"));
                        self.lost.truncate(lost);
                        Err(e)
                    }
                    _ => Ok(()),
                }
            }
            kind => {
                let rows = total(self.rows(&joined, kind)?);
                let cut = block_rule(rows, self.parts());
                self.array(&joined, kind, &cut)
            }
        }
    }

    /// Returns the rows of an array in each of the files.
    fn rows(&self, joined: &JoinedObject, kind: ArkoudaKind) -> Result<Vec<u64>> {
        match kind {
            ArkoudaKind::Strings => Strings::new(&self.origin(joined, kind), joined)?.rows(),
            _ => {
                let rows = joined.parts.iter().map(|object| {
                    object.as_ref().map_or(0, |object| match object.dataset() {
                        Some(dataset) => elements(dataset),
                        None => limbs::rows(object),
                    })
                });
                Ok(rows.collect())
            }
        }
    }

    /// Divides an array at the positions `cut`.
    fn array(&mut self, joined: &JoinedObject, kind: ArkoudaKind, cut: &[u64]) -> Result<()> {
        match kind {
            ArkoudaKind::Strings => self.strings(joined, cut),
            ArkoudaKind::Bigint => self.bigint(joined, cut),
            _ => self.leaf(joined, &joined.path, cut, &|_, _| 0),
        }
    }

    /// Creates a group in every file, with the attributes of one that has all members.
    fn group(&mut self, joined: &JoinedObject, marks: &[(String, i64)]) -> Result<()> {
        self.group_where(joined, marks, &|_| true)
    }

    fn group_where(
        &mut self,
        joined: &JoinedObject,
        marks: &[(String, i64)],
        wanted: &dyn Fn(usize) -> bool,
    ) -> Result<()> {
        let groups = joined.parts.iter().enumerate();
        let groups: Vec<(usize, &Arc<Object>)> = groups
            .filter_map(|(n, object)| Some((n, object.as_ref()?)))
            .filter(|(_, object)| object.is_group())
            .collect();
        let whole = groups.iter().find(|(_, object)| !limbs::is_empty(object));
        let &(file, object) = whole
            .or(groups.first())
            .ok_or_else(|| Error::damaged("no file has a group of it"))?;
        let mut marks = marks.to_vec();
        let like = match object.stored_as {
            Some(_) => {
                marks.push(("ObjType".to_owned(), STRINGS));
                None
            }
            None => self.object_of(file, Some(object)),
        };
        for (number, steps) in self.steps.iter_mut().enumerate() {
            if wanted(number) {
                steps.push(EditStep::Group {
                    like: like.clone(),
                    path: joined.path.clone(),
                    marks: marks.clone(),
                });
            }
        }
        Ok(())
    }

    /// Returns the reference to an object of a file for the worker.
    fn object_of(&self, file: usize, object: Option<&Arc<Object>>) -> Option<SourceObject> {
        Some(SourceObject {
            file: self.sources.get(file)?.clone(),
            addr: object?.addr()?,
        })
    }

    /// Divides a dataset. `add` returns the offset to add to the numbers that move from one file (the first argument)
    /// to another.
    fn leaf(
        &mut self,
        joined: &JoinedObject,
        path: &[Vec<u8>],
        cut: &[u64],
        add: &dyn Fn(usize, usize) -> i64,
    ) -> Result<()> {
        self.leaf_where(joined, path, cut, add, &|_| true)
    }

    fn leaf_where(
        &mut self,
        joined: &JoinedObject,
        path: &[Vec<u8>],
        cut: &[u64],
        add: &dyn Fn(usize, usize) -> i64,
        wanted: &dyn Fn(usize) -> bool,
    ) -> Result<()> {
        let datasets = joined.parts.iter().map(|object| object.as_ref()?.dataset());
        let datasets: Vec<_> = datasets.collect();
        let named = || String::from_utf8_lossy(joined.name()).into_owned();
        for dataset in datasets.iter().flatten() {
            if dataset.shape.len() != 1 || scalar(dataset).is_none() {
                let why = "it is no 1-D array of numbers";
                return Err(Error::damaged(why).about(named()));
            }
        }
        let there = || datasets.iter().enumerate().filter(|(_, d)| d.is_some());
        let (like, typed) = there()
            .find(|(_, dataset)| dataset.is_some_and(|d| d.shape != [0]))
            .or_else(|| there().next())
            .ok_or_else(|| Error::damaged("no file has a dataset of it").about(named()))?;
        let like = self.object_of(like, joined.parts[like].as_ref());
        let like = like.ok_or_else(|| Error::damaged("no file has it").about(named()))?;
        let typed = typed.map(|dataset| &dataset.element);
        let mixed = |d: &&npyfs_hdf5::Dataset| d.shape != [0] && Some(&d.element) != typed;
        if datasets.iter().flatten().any(mixed) {
            return Err(Error::damaged("parts of different type").about(named()));
        }
        let lens = datasets.iter().map(|d| d.map_or(0, |d| d.shape[0]));
        let lens: Vec<u64> = lens.collect();
        for (number, bounds) in cut.windows(2).enumerate() {
            let (from, to) = (bounds[0], bounds[1]);
            if !wanted(number) {
                continue;
            }
            let (mut pieces, mut begin) = (Vec::new(), 0_u64);
            for (file, &len) in lens.iter().enumerate() {
                let end = begin.saturating_add(len);
                let (first, last) = (from.max(begin), to.min(end));
                if first < last {
                    pieces.push(Piece {
                        from: self.object_of(file, joined.parts[file].as_ref()),
                        start: first - begin,
                        count: last - first,
                        add: add(file, number),
                    });
                }
                begin = end;
            }
            if pieces.iter().map(|piece| piece.count).sum::<u64>() != to - from {
                return Err(Error::damaged("fewer elements than it needs").about(named()));
            }
            self.steps[number].push(EditStep::Join {
                like: like.clone(),
                path: path.to_vec(),
                pieces,
            });
        }
        Ok(())
    }

    /// Divides integers with several limbs: every file gets all limbs, and missing ones are zero.
    fn bigint(&mut self, joined: &JoinedObject, cut: &[u64]) -> Result<()> {
        let origin = self.origin(joined, ArkoudaKind::Bigint);
        let width = Limbs::new(&origin, joined)?.width();
        let rows = self.rows(joined, ArkoudaKind::Bigint)?;
        self.group(joined, &[("NumLimbs".to_owned(), width as i64)])?;
        for limb in 0..width {
            let name = format!("Limb_{limb}");
            let Some(member) = joined.member(&name) else {
                // A file without limbs has no numbers.
                continue;
            };
            self.limb(&member, &rows, cut)?;
        }
        Ok(())
    }

    /// Divides a limb, which some files may lack.
    fn limb(&mut self, member: &JoinedObject, rows: &[u64], cut: &[u64]) -> Result<()> {
        let has = |part: &Option<Arc<Object>>| part.as_ref().is_some_and(|o| o.dataset().is_some());
        let like = member.parts.iter().position(has);
        let like = like.and_then(|file| self.object_of(file, member.parts[file].as_ref()));
        let like = like.ok_or_else(|| Error::damaged("no file has this limb"))?;
        for (number, bounds) in cut.windows(2).enumerate() {
            let (mut pieces, mut begin) = (Vec::new(), 0_u64);
            for (file, &len) in rows.iter().enumerate() {
                let end = begin.saturating_add(len);
                let (first, last) = (bounds[0].max(begin), bounds[1].min(end));
                if first < last {
                    pieces.push(Piece {
                        from: self.object_of(file, member.parts[file].as_ref()),
                        start: first - begin,
                        count: last - first,
                        add: 0,
                    });
                }
                begin = end;
            }
            self.steps[number].push(EditStep::Join {
                like: like.clone(),
                path: member.path.clone(),
                pieces,
            });
        }
        Ok(())
    }

    /// Divides strings at the positions `cut`.
    fn strings(&mut self, joined: &JoinedObject, cut: &[u64]) -> Result<()> {
        self.group(joined, &[])?;
        self.strings_below(joined, cut, &|_| true)
    }

    fn strings_below(
        &mut self,
        joined: &JoinedObject,
        cut: &[u64],
        wanted: &dyn Fn(usize) -> bool,
    ) -> Result<()> {
        let origin = self.origin(joined, ArkoudaKind::Strings);
        let strings = Arc::new(Strings::new(&origin, joined)?);
        let bytes = strings.bytes();
        let (rows, all) = (total(strings.rows()?), total(bytes.iter().copied()));
        let starts = strings.segments().payload()?;
        let places = bounds(&*starts, cut, rows, all)?;
        let values = joined
            .member("values")
            .ok_or_else(|| Error::damaged("no values"))?;
        self.leaf_where(&values, &values.path, &places, &|_, _| 0, wanted)?;
        if let Some(segments) = joined
            .member("segments")
            .filter(|_| strings.has_segments().unwrap_or(true))
        {
            strings.has_segments()?;
            let add = |from: usize, to: usize| rebase(&bytes, from, places[to]);
            self.leaf_where(&segments, &segments.path, cut, &add, wanted)?;
        }
        Ok(())
    }

    /// Divides segments together with their values.
    fn segarray(&mut self, joined: &JoinedObject) -> Result<()> {
        let (segments, values) = joined
            .member("segments")
            .zip(joined.member("values"))
            .ok_or_else(|| Error::damaged("no segments or values"))?;
        let counts_of = counts(&self.set, joined)?;
        let of_values = counts_of()?;
        let all = total(of_values.iter().copied());
        let rows = total(self.rows(&segments, ArkoudaKind::Pdarray)?);
        let cut = block_rule(rows, self.parts());
        let origin = self.origin(&segments, ArkoudaKind::Pdarray);
        let starts = Segments::new(&origin, &segments, Values::ByPart(counts_of))?.payload()?;
        let places = bounds(&*starts, &cut, rows, all)?;
        self.group(joined, &[])?;
        let add = |from: usize, to: usize| rebase(&of_values, from, places[to]);
        self.leaf(&segments, &segments.path, &cut, &add)?;
        // Arkouda writes an empty dataset if a locale has no strings, and, for other values, if it has no segments.
        let values = self.set.entered(&values)?;
        match kind(&self.set, &values)? {
            ArkoudaKind::Strings => {
                // If there were none at all, their type would be lost.
                let some = |to: usize| all == 0 || places[to] < places[to + 1];
                self.group_where(&values, &[], &some)?;
                self.strings_below(&values, &places, &some)?;
                if let Some(bytes) = values.member("values") {
                    let none = vec![0; places.len()];
                    self.leaf_where(&bytes, &values.path, &none, &|_, _| 0, &|to| !some(to))?;
                }
                Ok(())
            }
            kind => self.array(&values, kind, &places),
        }
    }
}

/// Returns the positions of the entries at `cut` among all values together.
fn bounds(starts: &dyn Content, cut: &[u64], rows: u64, all: u64) -> Result<Vec<u64>> {
    let place = |&row: &u64| {
        if row == 0 {
            return Ok(0);
        }
        if row >= rows {
            return Ok(all);
        }
        let mut word = [0; 8];
        starts.read_at(row * 8, &mut word)?;
        let start = u64::try_from(i64::from_le_bytes(word)).ok();
        start
            .filter(|&start| start <= all)
            .ok_or_else(|| Error::damaged("segments that lead nowhere"))
    };
    let places = cut.iter().map(place).collect::<Result<Vec<_>>>()?;
    match places.is_sorted() {
        true => Ok(places),
        false => Err(Error::damaged("segments that go backwards")),
    }
}

/// Returns the offset to add to the starts in a file, so that they count from a position among all values.
fn rebase(values: &[u64], file: usize, place: u64) -> i64 {
    let base = total(values.iter().take(file).copied());
    base.cast_signed().wrapping_sub(place.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locales_have_blocks_as_chapel_cuts_them() {
        assert_eq!(block_rule(7, 3), [0, 3, 5, 7]);
        assert_eq!(block_rule(2, 3), [0, 1, 2, 2]);
        assert_eq!(block_rule(4, 6), [0, 1, 2, 2, 3, 4, 4]);
        assert_eq!(block_rule(0, 2), [0, 0, 0]);
        assert_eq!(block_rule(u64::MAX, 2)[2], u64::MAX);
    }

    #[test]
    fn starts_of_a_file_count_from_a_place_among_all() {
        assert_eq!(rebase(&[10, 5, 7], 0, 0), 0);
        assert_eq!(rebase(&[10, 5, 7], 2, 12), 3);
        assert_eq!(rebase(&[10, 5, 7], 1, 12), -2);
    }
}
