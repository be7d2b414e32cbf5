//! What has to be read of the columns of a table before their file has a size.
//!
//! A column asks for its findings in the same order each time it is opened. The first time they are made by reading; later,
//! for the same version of the table, they are given again.

use std::sync::Arc;

use super::text::Lengths;
use crate::views::unfit::Unfit;

/// A finding on a part of a column, for each batch of rows.
#[derive(Debug)]
pub(super) enum Finding {
    /// The number of missing values.
    Missing(Vec<u64>),
    /// The lengths of the texts, and whether all of them are UTF-8.
    Texts(Vec<Lengths>, bool),
    /// The position at which the lists of a batch begin; one more than there are batches.
    Starts(Vec<u64>),
}

/// A finding, or the reason why a column is left out.
type Verdict = Result<Arc<Finding>, String>;

/// The findings on a table, in the order in which they are asked for.
#[derive(Default)]
pub(super) struct Survey {
    known: Vec<Verdict>,
    asked: usize,
}

impl Survey {
    /// Returns a survey that gives known findings.
    pub(super) fn known(known: Vec<Verdict>) -> Self {
        Self { known, asked: 0 }
    }

    /// Returns all findings.
    pub(super) fn into_findings(self) -> Vec<Verdict> {
        self.known
    }

    /// Returns the next finding, which `make` makes if it is not known.
    pub(super) fn find(
        &mut self,
        make: impl FnOnce() -> Result<Finding, Unfit>,
    ) -> Result<Arc<Finding>, Unfit> {
        if self.asked == self.known.len() {
            self.known.push(match make() {
                Ok(finding) => Ok(Arc::new(finding)),
                Err(Unfit::LeftOut(why)) => Err(why),
                Err(unknown) => return Err(unknown),
            });
        }
        let verdict = self.known.get(self.asked).cloned();
        self.asked += 1;
        match verdict {
            Some(verdict) => verdict.map_err(Unfit::LeftOut),
            None => Err(Unfit::LeftOut("nothing was found out".to_owned())),
        }
    }
}

impl Finding {
    /// Returns the approximate memory it takes.
    pub(super) fn weight(&self) -> u64 {
        8 * match self {
            Self::Missing(counts) | Self::Starts(counts) => counts.len() as u64,
            Self::Texts(lengths, _) => lengths.iter().map(Lengths::count).sum(),
        }
    }
}
