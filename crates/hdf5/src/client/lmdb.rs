//! Questions about LMDB files.

use serde_bytes::ByteBuf;

use super::H5;
use crate::protocol::{Answer, H5Error, LmdbRequest, PackedValues, Request, Sink};
use npyfs_io::file::StoreFile;

impl H5 {
    /// Returns the values of keys of an LMDB file, in their order.
    pub fn values(
        &self,
        file: &StoreFile,
        keys: Vec<Vec<u8>>,
    ) -> Result<Vec<Option<ByteBuf>>, H5Error> {
        let wanted = keys.len();
        let keys = keys.into_iter().map(ByteBuf::from).collect();
        match self.call(file, Request::Lmdb(LmdbRequest::Get { keys }))? {
            Answer::Values(values) if values.len() == wanted => Ok(values),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Hands on the value of a key of an LMDB file as it comes; see [`H5::stream`].
    pub fn stream_value(
        &self,
        file: &StoreFile,
        key: &[u8],
        sink: &mut Sink<'_>,
    ) -> Result<(), H5Error> {
        let key = ByteBuf::from(key);
        self.stream(file, Request::Lmdb(LmdbRequest::Value { key }), sink)
    }

    /// Returns the values of keys of an LMDB file that are `prefix` and a hash in hexadecimal digits.
    pub fn hashed<const N: usize>(
        &self,
        file: &StoreFile,
        prefix: &[u8],
        hashes: &[[u8; N]],
    ) -> Result<PackedValues, H5Error> {
        let request = LmdbRequest::Hashed {
            prefix: ByteBuf::from(prefix),
            width: N,
            hashes: ByteBuf::from(hashes.as_flattened()),
        };
        match self.call(file, Request::Lmdb(request))? {
            Answer::Packed(packed) if packed.is_valid(hashes.len()) => Ok(packed),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Returns the lengths of the values of keys of an LMDB file, in bytes, in their order.
    pub fn lengths(
        &self,
        file: &StoreFile,
        keys: Vec<Vec<u8>>,
    ) -> Result<Vec<Option<u64>>, H5Error> {
        let wanted = keys.len();
        let keys = keys.into_iter().map(ByteBuf::from).collect();
        let request = LmdbRequest::Lengths { keys };
        match self.call(file, Request::Lmdb(request))? {
            Answer::Lengths(lengths) if lengths.len() == wanted => Ok(lengths),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Returns rows of an LMDB file, in order of key; see [`LmdbRequest::Rows`].
    pub fn rows(
        &self,
        file: &StoreFile,
        prefix: &[u8],
        after: Option<Vec<u8>>,
        most: usize,
        longest: usize,
    ) -> Result<Vec<(ByteBuf, ByteBuf)>, H5Error> {
        let request = LmdbRequest::Rows {
            prefix: prefix.to_vec(),
            after,
            most,
            longest,
        };
        match self.call(file, Request::Lmdb(request))? {
            Answer::Rows(rows) => Ok(rows),
            _ => Err(H5Error::unexpected_answer()),
        }
    }
}
