#include "sim/sparsifier.hpp"
