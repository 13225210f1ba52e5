#include "traces/expansion.hpp"
