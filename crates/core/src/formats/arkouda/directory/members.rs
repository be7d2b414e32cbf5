//! The members of objects that require certain ones, and members whose numbers refer to other members.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::show::numbers;
use super::{ObjectDirectory, ObjectListing};
use crate::formats::arkouda::array::{ArrayNode, ArraySource, Origin};
use crate::formats::arkouda::kind::{ArkoudaKind, kind};
use crate::formats::arkouda::limbs::{Limb, Limbs, MaxBits};
use crate::formats::arkouda::numbers::{NumberKind, Segments, Values, counts};
use crate::formats::arkouda::object::{Joined, total};
use crate::formats::arkouda::strings::{Strings, values_dtype};
use crate::tree::Node;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_io::content::{Concat, Content};

impl ObjectDirectory {
    /// Adds the required members of an object of this kind that are missing, under the names they would have.
    pub(super) fn missing_members(&self, group: &Joined, to: &mut ObjectListing) {
        let claimed = group.objects().find_map(|object| object.marks.members);
        let numbered = |prefix: &str| -> Vec<String> {
            // A wrong number must not fill the directory.
            let there = group.members().len() as u64;
            let count = claimed.unwrap_or(1).min(there + 1);
            (0..count).map(|i| format!("{prefix}_{i}")).collect()
        };
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let required: Vec<String> = match self.kind {
            ArkoudaKind::SegArray => names(&["segments", "values"]),
            ArkoudaKind::Categorical => names(&["codes", "categories", "NA_Codes"]),
            ArkoudaKind::GroupBy => {
                let mut all: Vec<String> = names(&["segments", "permutation", "unique_key_idx"]);
                all.extend(numbered("KEY"));
                all
            }
            ArkoudaKind::Index | ArkoudaKind::MultiIndex => numbered("IDX"),
            ArkoudaKind::DataFrame => names(&["Index"]),
            _ => Vec::new(),
        };
        for name in required {
            if group.member(&name).is_some() {
                continue;
            }
            let joined = Joined {
                path: [group.path.as_slice(), &[name.clone().into_bytes()]].concat(),
                parts: vec![None; group.parts.len()],
            };
            let why = format!("a {} must have it, and there is none", self.kind.name());
            self.broken(&joined, Error::damaged(why), to);
        }
    }

    /// Returns the values to which a member called `segments` refers; `None` for other members.
    pub(super) fn points_into(&self, group: &Joined, member: &Joined) -> Option<Values> {
        let of = match self.kind {
            ArkoudaKind::GroupBy | ArkoudaKind::Categorical if member.name() == b"segments" => {
                "permutation"
            }
            _ => return None,
        };
        let all = group.member(of)?;
        let lengths = all.objects().map(|object| {
            let shape = &object.dataset()?.shape;
            shape.first().copied().filter(|_| shape.len() == 1)
        });
        let lengths: Option<Vec<u64>> = lengths.collect();
        Some(Values::Together(total(lengths?)))
    }

    /// Adds `values` and `segments` of strings.
    pub(super) fn strings_members(&self, group: &Joined, to: &mut ObjectListing) {
        let Some(strings) = &self.strings else {
            return;
        };
        let values = group.member("values");
        if let Some(values) = values {
            let array = Arc::new(AllBytes(strings.clone()));
            self.file(&values, ArkoudaKind::Pdarray, array, to);
        }
        if let Ok(Some(why)) = strings.too_wide() {
            to.notes.push(format!("not shown at fixed width: {why}"));
        }
        let segments = group.member("segments").unwrap_or_else(|| Joined {
            path: [group.path.as_slice(), &[b"segments".to_vec()]].concat(),
            parts: vec![None; group.parts.len()],
        });
        self.file(&segments, ArkoudaKind::Pdarray, strings.segments(), to);
        for member in group.members() {
            if !matches!(member.name(), b"values" | b"segments") {
                self.member(group, &member, to);
            }
        }
    }

    /// Adds `values` of any kind, and the `segments` that refer to them.
    pub(super) fn segarray(&self, group: &Joined, to: &mut ObjectListing) {
        for member in group.members() {
            if member.name() != b"segments" {
                self.member(group, &member, to);
            }
        }
        let Some(segments) = group.member("segments") else {
            return;
        };
        let shown = kind(&self.origin.set, &segments).and_then(|_| {
            let origin = self.origin_of(&segments, ArkoudaKind::Pdarray);
            Segments::new(
                &origin,
                &segments,
                Values::ByPart(counts(&self.origin.set, group)?),
            )
        });
        match shown {
            Ok(array) => self.file(&segments, ArkoudaKind::Pdarray, Arc::new(array), to),
            Err(e) => self.broken(&segments, e, to),
        }
    }

    /// Adds the limbs of integers, and the number of bits of each integer, if it is limited.
    pub(super) fn limbs(&self, group: &Joined, to: &mut ObjectListing) -> Result<()> {
        let origin = self.origin_of(group, ArkoudaKind::Bigint);
        let limbs = Arc::new(Limbs::new(&origin, group)?);
        for number in 0..limbs.width() {
            let array = Limb {
                limbs: limbs.clone(),
                number,
            };
            self.entry(&format!("Limb_{number}"), &origin, Arc::new(array), to);
        }
        let bits = group.objects().find_map(|object| object.marks.max_bits);
        if let Some(bits) = bits.and_then(|bits| i64::try_from(bits).ok()) {
            self.entry("MaxBits", &origin, Arc::new(MaxBits(bits)), to);
        }
        Ok(())
    }

    /// Adds the array itself under a name that tells its kind, which its elements do not.
    pub(super) fn named(&self, joined: &Joined, to: &mut ObjectListing) -> Result<()> {
        let origin = self.origin_of(joined, self.kind);
        let array = numbers(&origin, NumberKind::AsStored)?;
        self.entry(self.kind.name(), &origin, array, to);
        Ok(())
    }

    fn entry(
        &self,
        name: &str,
        of: &Arc<Origin>,
        array: Arc<dyn ArraySource>,
        to: &mut ObjectListing,
    ) {
        let node = ArrayNode {
            origin: of.clone(),
            array,
            is_remade: false,
        };
        let name = self.visible(name.as_bytes(), ".npy");
        to.entries.push((name, Node::File(Arc::new(node))));
    }
}

/// The concatenated values of strings.
struct AllBytes(Arc<Strings>);

impl ArraySource for AllBytes {
    fn form(&self) -> Result<(DType, Vec<u64>)> {
        Ok((values_dtype(), vec![total(self.0.bytes())]))
    }

    fn payload(&self) -> Result<Arc<dyn Content>> {
        let parts = self.0.values().filter(|part| part.dataset.shape != [0]);
        let payloads = parts.map(|part| Ok(Arc::new(part.payload()?) as Arc<dyn Content>));
        Ok(Arc::new(Concat::new(payloads.collect::<Result<Vec<_>>>()?)))
    }

    fn part(&self, number: usize) -> Json {
        json!({ "elements": self.0.bytes().get(number) })
    }
}
