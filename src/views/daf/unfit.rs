//! The outcome of judging a datum that cannot be shown.

use crate::error::{Error, ErrorKind};

/// The reason why there are no files of a datum.
#[derive(Debug)]
pub(super) enum Unfit {
    /// daf could not read them right: it is left out, for as long as this version of it is there.
    LeftOut(String),
    /// It could not be found out now.
    Unknown(Error),
}

impl From<Error> for Unfit {
    fn from(error: Error) -> Self {
        match error.is_passing() || error.kind == ErrorKind::Stale {
            true => Self::Unknown(error),
            false => Self::LeftOut(error.message),
        }
    }
}

impl From<Unfit> for Error {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::LeftOut(why) => Self::damaged(why),
            Unfit::Unknown(error) => error,
        }
    }
}

/// Leaves something out, for a reason.
pub(super) fn left_out<T>(why: impl Into<String>) -> Result<T, Unfit> {
    Err(Unfit::LeftOut(why.into()))
}
